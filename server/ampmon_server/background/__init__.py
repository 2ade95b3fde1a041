"""The server's background work: writing, diagnosis, alerts, forwarding, pruning and notices of advances."""
