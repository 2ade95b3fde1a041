"""Queries of the page about one or several runs: read from the store, compare and draw. Independent of HTTP."""
