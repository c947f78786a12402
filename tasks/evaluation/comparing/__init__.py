"""Two results set against each other: what differs, and whether by more than noise."""
