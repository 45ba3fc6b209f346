"""Rows on their way from every rank to rank 0."""
