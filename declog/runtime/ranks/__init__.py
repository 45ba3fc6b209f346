"""The exchange between ranks: every rank sends its rows to rank 0."""
