"""Attacks a real server as an outsider would: thousands of hostile requests, and a count of those that got through."""
