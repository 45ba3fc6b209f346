"""Adapters for trainers, frameworks and loggers, written against declog's public API as a stranger's code would be."""
