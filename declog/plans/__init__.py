"""The logging plan: frozen ops, their fingerprint, and the plan in words.

Imports the language; nothing that composes, compiles or runs.
"""
