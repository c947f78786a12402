"""How fast decoding is on a GPU: see `__main__`."""
