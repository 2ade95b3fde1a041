"""What the way from the training process to the database costs, how long it takes, and what a kill leaves of it."""
