"""The logic of executing a run, as generators of effects. It performs no I/O and knows no front end."""
