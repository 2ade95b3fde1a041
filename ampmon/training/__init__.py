"""What is known of the training that is watched: its parameters, its calls, and what came of them."""
