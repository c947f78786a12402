"""Alignment of a drafter with the large model: losses, rollouts, replay, and held-out acceptance."""
