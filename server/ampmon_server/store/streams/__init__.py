"""The attempts, streams and scalers of a run, and the ledger of its stored records."""
