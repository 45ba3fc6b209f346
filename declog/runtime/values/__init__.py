"""Reads, checks and copies single values of the training code."""
