"""What a run was found to have, and the messages that tell of it."""
