"""The HTTP routes by subject. Each reads a request, calls the store or the charts, and shapes the answer. No SQL."""
