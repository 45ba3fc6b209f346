"""Hydra in; plain data, and the place of every key, out.

The only room that imports Hydra and OmegaConf.
"""
