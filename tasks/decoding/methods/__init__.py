"""The methods, family by family: how the parts of each are put together."""
