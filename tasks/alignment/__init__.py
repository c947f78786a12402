"""Alignment of a drafter with the large model: the calibration set, losses, rollouts, and held-out acceptance."""
