"""The upkeep of a database: copies, checks, pruning, and spreading it over a cluster."""
