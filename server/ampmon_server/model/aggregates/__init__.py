"""Cells: what consecutive rows of a series have in common, as one row. Pure: arrays in, arrays out."""
