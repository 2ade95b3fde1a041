"""What it costs to judge a run: when somebody asks, and as its records arrive."""
