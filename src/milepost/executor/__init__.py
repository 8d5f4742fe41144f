"""The logic of running, as generators of effects. It performs no I/O and knows no front end."""
