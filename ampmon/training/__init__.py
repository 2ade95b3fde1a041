"""Facts about the watched training: its parameters, its calls, and the outcome of each update."""
