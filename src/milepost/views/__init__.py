"""The values that people are shown of a run. The command line prints them; nothing here prints."""
