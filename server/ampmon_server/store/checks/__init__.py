"""What `ampmon db verify` holds a database to, by subject: each check reads, and yields what is not as it must be."""

from __future__ import annotations

from ampmon_server.store.checks.finding import Finding


__all__ = ["Finding"]
