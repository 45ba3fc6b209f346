"""Where rows are until a log event takes them: scopes, steps and their batches."""
