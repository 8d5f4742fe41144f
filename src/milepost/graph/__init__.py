"""Graphs: nodes over one typed state, and the walk of a state through them."""
