"""Benchmarks of a team's load on a server: access checks, rejected tokens, and many clients at once."""
