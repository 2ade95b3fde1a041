"""What is wrong with a run and what would be better: diagnosis, replays, other scales. Pure."""
