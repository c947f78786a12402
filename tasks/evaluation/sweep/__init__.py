"""A sweep: expand the grid, replay it from cached predictions, plan what to time, evaluate the points and write their rows."""
