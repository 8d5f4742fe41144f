"""Runs in a folder of text files."""
