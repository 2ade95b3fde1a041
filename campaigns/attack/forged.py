"""Forged headers: user identity, scheme, host and origin."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from campaigns.attack.raw import Answer, Wire
from campaigns.attack.tally import Tally, every


PROXY = "127.0.0.2"
"""The proxy that the server trusts. Every address in 127/8 is this machine's."""
USER_HEADER = "X-Forwarded-User"
NAMES = (
    "ada",
    "admin",
    "root",
    "ada, eve",
    "ada,eve",
    "",
    " ",
    "\t",
    "ada\x01",
    "ada\x7f",
    "ada\x85",
    "ad\xe4",
    "ada\tb",
    "x" * 257,
    "*",
    "user:ada",
    "own",
    "ada\r\nX-Forwarded-User: eve",
)
SPELLED = (
    "X-Forwarded-User",
    "x-forwarded-user",
    "X-FORWARDED-USER",
    "X_Forwarded_User",
    "X-Forwarded_User",
    "Remote-User",
    "X-Remote-User",
    "X-Forwarded-Preferred-Username",
    "X-Forwarded-Email",
    "X-Auth-Request-User",
    "X-WEBAUTH-USER",
)
PROTOS = (
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Proto", "http"),
    ("X-Forwarded-Proto", "HTTPS"),
    ("X-Forwarded-Proto", ""),
    ("X-Forwarded-Proto", "https, https"),
    ("X-Forwarded-Proto", "https,http"),
    ("X_Forwarded_Proto", "https"),
    ("X-Forwarded-Ssl", "on"),
    ("Front-End-Https", "on"),
    ("X-Url-Scheme", "https"),
    ("X-Forwarded-Scheme", "https"),
    ("Forwarded", f"for={PROXY};proto=https;by={PROXY}"),
    ("Forwarded", f'for="{PROXY}";host=127.0.0.1;proto=https'),
)
SOURCES = (
    ("X-Forwarded-For", PROXY),
    ("X-Real-IP", PROXY),
    ("Forwarded", f"for={PROXY}"),
    ("X-Client-IP", PROXY),
    ("True-Client-IP", PROXY),
    ("CF-Connecting-IP", PROXY),
    ("X-Forwarded-For", f"{PROXY}, {PROXY}"),
    ("X-Originating-IP", PROXY),
    ("X-Cluster-Client-IP", PROXY),
    ("Via", f"1.1 {PROXY}"),
)
HOSTS = (
    "evil.example",
    "127.0.0.1.evil.example",
    "evil.example:{port}",
    "127.0.0.1@evil.example",
    "127.0.0.1:{port}@evil.example",
    "127.0.0.1:80@evil.example:{port}",
    "127.0.0.1:x",
    "127.0.0.1:{port}/../evil",
    "127.0.0.1/evil.example",
    "127.0.0.1#evil.example",
    "127.0.0.1?evil.example",
    "127.0.0.1\\evil.example",
    "[::1]evil.example",
    "[::1].evil.example",
    "[::1",
    "[evil.example]",
    "2130706433",
    "0177.0.0.1",
    "0x7f.1",
    "127.1",
    "0.0.0.0",
    "[::]",
    "[::ffff:127.0.0.1]",
    "",
    " ",
    ".",
    "localhost..",
    "localhost.evil",
    "127.0.0.1:-1",
    "127.0.0.1:999999",
    "127.0.0.1:{port}:{port}",
    "127.0.0.1:{port},evil.example",
    "127.0.0.1, evil.example",
    "localhost\xa0",
    "localhost\tevil",
    "l\xf6calhost",
    "user@localhost",
    "http://localhost",
    "*",
    "null",
)
ORIGINS = (
    "",
    "null",
    "https://evil.example",
    "http://evil.example:{port}",
    "https://127.0.0.1",
    "http://127.0.0.1",
    "https://127.0.0.1:1",
    "https://127.0.0.1:{port}.evil.example",
    "https://127.0.0.1:{port}@evil.example",
    "https://evil.example#127.0.0.1:{port}",
    "https://127.0.0.1:{port}/",
    "https://127.0.0.1:{port}, https://evil.example",
    "https://localhost:{port}",
    "ftp://127.0.0.1:{port}",
    "https:127.0.0.1:{port}",
    "//127.0.0.1:{port}",
    "127.0.0.1:{port}",
    "https://127.0.0.1:{port}\x01",
    "file://",
    "chrome-extension://x",
)
READ = ("/api/v1/runs", "/api/v1/me", "/", "/metrics")
_Forged = tuple[str, str, tuple[str, str], str, "tuple[str, str] | None"]
CHANGE = (
    ("POST", "/logout"),
    ("POST", "/api/v1/login-links"),
    ("POST", "/api/v1/tokens"),
    ("DELETE", "/api/v1/tokens/x"),
)


def identities(tally: Tally, port: int, others: list[Wire], nth: int = 1) -> None:
    """Forge the identity header from addresses other than the proxy's, and send invalid ones from the proxy's."""
    headers = product(
        SPELLED, NAMES[:2], (PROTOS[0], PROTOS[1], PROTOS[11]), READ[:2], (None, SOURCES[0])
    )
    single = product(SPELLED[:1], NAMES[:1], PROTOS, READ[:1], (None, *SOURCES))
    beside = list(product([*headers, *single], others))

    def from_elsewhere(attack: tuple[_Forged, Wire]) -> object:
        (spelled, name, proto, path, source), wire = attack
        more = [] if source is None else [source]
        return refused(wire.ask("GET", path, (spelled, name), proto, *more))

    tally.each(
        "identity from an address that is not the proxy's", every(beside, nth), from_elsewhere
    )
    proxy = Wire(port, source=PROXY)
    tally.each(
        "identity from the proxy, without TLS or naming nobody",
        every(list(_spoiled()), nth),
        lambda sent: refused(proxy.ask("GET", *sent)),
    )


def refused(answer: Answer) -> object:
    """Return None for a refusal or a cut connection, else the answer."""
    return None if answer.status in {0, 400, 401, 403, 404, 421, 429, 431} else answer


def _spoiled() -> Iterator[tuple[str | tuple[str, str], ...]]:
    https = ("X-Forwarded-Proto", "https")
    for path in READ:
        for name in NAMES[3:14]:
            yield path, (USER_HEADER, name), https
        for first, second in product(NAMES[:4], NAMES[:6]):
            yield path, (USER_HEADER, first), (USER_HEADER.lower(), second), https
        for spelled in SPELLED[3:]:
            yield path, (spelled, "ada"), https
        for proto in PROTOS[1:]:
            yield path, (USER_HEADER, "ada"), proto
        for one, other in product(PROTOS[:4], PROTOS[:4]):
            yield path, (USER_HEADER, "ada"), one, other
        yield path, (USER_HEADER, "ada")
        yield path, (USER_HEADER, "ada"), https, ("Authorization", "Bearer x")


def hosts(tally: Tally, wire: Wire, token: str, nth: int = 1) -> None:
    """Send a good token under names that are not the server's: no answer, and no link to such a name."""
    bearer = ("Authorization", f"Bearer {token}")
    methods = (
        ("GET", "/api/v1/runs"),
        ("POST", "/api/v1/login-links"),
        ("GET", "/healthz"),
        ("GET", "/"),
    )
    named = [(host.format(port=wire.port), *method) for host in HOSTS for method in methods]
    forwarded = [
        ("X-Forwarded-Host", host.format(port=wire.port)) for host in HOSTS if host.isascii()
    ]

    def under(attack: tuple[str, str, str]) -> object:
        host, method, path = attack
        return refused(wire.ask(method, path, ("Host", host), bearer, host=None))

    def beside(attack: tuple[str, str]) -> object:
        answer = wire.ask("POST", "/api/v1/login-links", bearer, attack)
        return answer if b"evil" in answer.body else None

    tally.each("a Host that is not the server's", every(named, nth), under)
    tally.each("a forwarded Host", every(forwarded, nth), beside)


def origins(tally: Tally, wire: Wire, cookie: str, nth: int = 1) -> None:
    """Send changes with a reader's cookie from other pages, and from the server's own name without TLS."""
    scheme = "http" if wire.ca else "gopher"
    urls = [*ORIGINS, f"{scheme}://127.0.0.1:{{port}}", f"{scheme.upper()}://127.0.0.1:{{port}}"]
    named = [(origin.format(port=wire.port), *change) for origin in urls for change in CHANGE]

    def ask(attack: tuple[str, str, str]) -> object:
        origin, method, path = attack
        return refused(
            wire.ask(method, path, ("Cookie", cookie), ("Origin", origin), ("Referer", origin))
        )

    without = [("", *change) for change in CHANGE]
    tally.each("a change from another page, with a cookie", every(named, nth), ask)
    tally.each(
        "a change without an Origin, with a cookie",
        without,
        lambda each: refused(wire.ask(each[1], each[2], ("Cookie", cookie))),
    )
