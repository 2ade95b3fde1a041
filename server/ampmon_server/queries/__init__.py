"""What a page asks of a run or of several: read from the store, compared and drawn. Speaks no HTTP."""
