"""The flow of `milepost demo`: a pipeline over four years of Seattle's weather, with its data."""
