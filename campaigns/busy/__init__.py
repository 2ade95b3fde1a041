"""Runs the test suite while busy loops compete for the processors."""
