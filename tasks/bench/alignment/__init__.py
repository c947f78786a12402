"""Ways of aligning a drafter, set beside each other at equal training time."""
