"""Makes the calibration set: the large model's outputs, on which the drafter is trained (BiLD, section 3.5.1)."""
