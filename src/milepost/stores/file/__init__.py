"""A store in a folder of text files."""
