"""What `milepost demo` runs: a pipeline over four years of Seattle's weather, with its data."""
