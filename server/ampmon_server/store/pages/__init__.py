"""Stores rows in pages and aggregates them into cells: packing, levels and lookup."""
