"""Shared parts of the charts: axes, layout, gaps, bands and typed arrays. This package draws no chart of its own."""
