"""Long-running checks, each a folder with its own `make` target. `tests/campaigns/` holds a smoke test of each."""
