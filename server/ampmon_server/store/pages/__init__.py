"""Rows in pages and cells: how they are packed, levelled and found."""
