"""The calibration set: the large model's outputs, which the drafter learns from (BiLD, section 3.5.1)."""
