"""What a run was found to have, and the messages about it."""
