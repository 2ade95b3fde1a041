"""Attacks a real server with thousands of hostile requests, and counts those that got through."""
