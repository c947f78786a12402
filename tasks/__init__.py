"""What is done: one module a DVC stage, of the same name, and the packages that the stages share."""
