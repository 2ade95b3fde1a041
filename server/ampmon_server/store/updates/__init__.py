"""Updates, skips and logged values."""
