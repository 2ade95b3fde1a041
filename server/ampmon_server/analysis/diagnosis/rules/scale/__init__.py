"""Rules about the scale itself: where it is, and how it moves."""
