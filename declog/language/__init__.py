"""What a config may say: models of the YAML, types, expressions, functions, reductions.

Imports pydantic and numpy; nothing of declog but ``errors`` and ``registry``.
"""
