"""Runs in one SQLite file."""
