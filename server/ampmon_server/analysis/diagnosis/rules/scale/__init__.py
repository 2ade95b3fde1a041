"""Rules about the scale itself: its value, and how it moves."""
