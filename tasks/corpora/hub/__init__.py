"""Data sets of the Hugging Face Hub, or local copies of them, at a locked revision and without remote code."""
