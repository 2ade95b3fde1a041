"""The monitor inside the training process: the scaler, the run, and the path of its records."""
