"""Maintains a database: backup, verification, pruning, and distribution over a cluster."""
