"""Cells: single rows that aggregate consecutive rows of a series. Pure: arrays in, arrays out."""
