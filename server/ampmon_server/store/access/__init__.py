"""Tokens, sessions and codes, by their digests."""
