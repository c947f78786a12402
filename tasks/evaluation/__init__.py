"""Quality, timing, statistics, frontiers and figures."""
