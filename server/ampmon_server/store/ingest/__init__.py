"""Batches that come in: one transaction each, or one for several."""
