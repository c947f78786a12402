"""Alignment of a drafter with the large model: the calibration set, losses, and held-out acceptance."""
