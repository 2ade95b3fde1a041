"""Benchmarks of the store: figures, ingest and bytes, from ten thousand to ten million updates."""
