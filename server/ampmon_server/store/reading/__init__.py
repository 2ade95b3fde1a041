"""Implements the store's reads for the dashboard and for API clients."""
