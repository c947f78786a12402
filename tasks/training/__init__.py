"""The DeepSpeed loop, its data and its checkpoints."""
