"""`make gpu`: in ten minutes, what holds of ampmon on a real GPU, stage by stage."""
