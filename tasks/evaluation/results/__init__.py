"""Typed records of what sweeps and reports leave on disk, and the only code that reads and writes them."""
