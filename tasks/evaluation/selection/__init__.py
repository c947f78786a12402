"""Which points keep the quality of the vanilla large model beyond doubt: margins, corrected bounds, and the check on test."""
