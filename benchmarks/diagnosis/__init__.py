"""Benchmarks of judging runs: on request, and as their records arrive."""
