"""Stores that users wrote and views that other code expects, over the library's own stores."""
