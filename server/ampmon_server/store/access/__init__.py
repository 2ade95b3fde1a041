"""Stores tokens, revoked sessions and login codes by their digests."""
