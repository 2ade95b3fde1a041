"""Long proofs, each a folder with a `make` target of its own. `tests/campaigns/` holds a smoke test of each."""
