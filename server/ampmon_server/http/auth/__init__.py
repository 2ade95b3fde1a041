"""Access control: tokens, one-time links, cookies, page sessions, and the guard in front of every route."""

from __future__ import annotations

from ampmon_server.http.auth.caller import Caller
from ampmon_server.http.auth.callers import Callers
from ampmon_server.http.auth.guard import Guard
from ampmon_server.http.auth.keys import KeyProblem, Keys
from ampmon_server.http.auth.limits import Limits
from ampmon_server.http.auth.logins import Logins
from ampmon_server.http.auth.proofs import Proofs
from ampmon_server.http.auth.rates import TooManyAttempts
from ampmon_server.http.auth.sessions import Sessions
from ampmon_server.http.auth.tokens import Tokens


__all__ = [
    "Caller",
    "Callers",
    "Guard",
    "KeyProblem",
    "Keys",
    "Limits",
    "Logins",
    "Proofs",
    "Sessions",
    "Tokens",
    "TooManyAttempts",
]
