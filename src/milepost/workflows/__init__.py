"""Workflows: steps in plain Python, replayed from the record."""
