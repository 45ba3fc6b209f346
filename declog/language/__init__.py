"""The language of configs: models of the YAML, types, expressions, functions, reductions."""
