"""What a corpus looks like before anything is trained on it, and what speaks against training."""
