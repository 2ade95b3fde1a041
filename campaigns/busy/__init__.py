"""Runs the test suite while busy loops compete with it for the processor."""
