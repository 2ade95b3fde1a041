"""Who may come in: the token, one-time links, the cookie, the session in memory; and the guard before every route."""

from __future__ import annotations

from ampmon_server.auth.guard import Guard
from ampmon_server.auth.keys import KeyProblem, Keys
from ampmon_server.auth.logins import Logins, TooManyAttempts


__all__ = ["Guard", "KeyProblem", "Keys", "Logins", "TooManyAttempts"]
