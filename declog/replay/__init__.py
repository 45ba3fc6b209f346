"""Captured calls and config tests, played on real recorders.

This room is above ``api``: it composes, compiles and starts runs as a user would.
"""
