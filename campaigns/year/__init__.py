"""A year of a team in an hour: runs that are generated, and put through real ingest on a clock that is sped up."""
