"""Captured calls and config tests, played on real recorders.

Sits above ``api``: it composes, compiles and starts as a stranger would.
"""
