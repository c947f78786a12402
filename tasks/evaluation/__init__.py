"""Quality, timing, acceptance, statistics, frontiers; the report made of them."""
