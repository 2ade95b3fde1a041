"""Benchmarks of the delivery from trainer to database: cost, latency, and data loss after a kill."""
