"""Values of the library: no I/O, no clock, no knowledge of how runs are executed."""
