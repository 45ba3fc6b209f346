"""What to write in place of an expression that parses and does not compile."""
