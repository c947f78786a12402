"""A sweep: its points, played from notes, planned, decoded, timed."""
