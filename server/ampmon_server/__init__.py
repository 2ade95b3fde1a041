"""The ampmon service: stores what training processes stream, and shows it."""
