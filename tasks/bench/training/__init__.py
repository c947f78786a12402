"""Training and labelling here beside `transformers`: see `command`."""
