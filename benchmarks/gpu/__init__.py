"""`make gpu`: verifies ampmon on a real GPU, stage by stage, in ten minutes."""
