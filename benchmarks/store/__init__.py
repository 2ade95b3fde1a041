"""What the store costs: its figures, ingest and bytes, at sizes from ten thousand updates to ten million."""
