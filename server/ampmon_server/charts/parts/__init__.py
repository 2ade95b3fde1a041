"""What charts share: axes, layout, gaps, bands and typed arrays. Draws no chart of its own."""
