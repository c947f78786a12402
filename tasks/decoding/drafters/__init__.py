"""The drafters: what proposes tokens. `loop.make_drafter` builds the one that a method's settings name."""
