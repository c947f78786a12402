"""What a drafter is aligned by: divergences from the large model, texts written while training, held-out acceptance."""
