"""Benchmarks of the page: latency from an update to its pixels, opening a long run, and memory while open."""
