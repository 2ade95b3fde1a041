"""Who reports to a run, and which of their records are held."""
