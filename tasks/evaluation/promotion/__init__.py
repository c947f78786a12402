"""A new pair beside the champion on the same examples: measured, judged by one rule, and the rule checked on null trials."""
