"""Decode texts with a trained pair, see who proposed each token, and time the method against vanilla."""
