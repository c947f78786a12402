"""The calibration set: what the large model writes for the drafter to learn from (BiLD, section 3.5.1)."""
