"""Generates a year of a team's runs, and puts it through real ingest on an accelerated clock."""
