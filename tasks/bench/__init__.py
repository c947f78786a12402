"""How fast decoding is here, beside what everybody has: see `__main__`."""
