"""Graphs: nodes over one typed state, and the way of a state through them."""
