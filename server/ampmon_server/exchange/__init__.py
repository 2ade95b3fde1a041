"""Runs as files: exports of ours, and logs of others."""
