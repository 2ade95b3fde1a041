"""One-time links, tokens and sessions on several processes: reuse, use after revocation, and open redirects."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ampmon_server.http.auth.tokens import KNOWN_S
from campaigns.attack.raw import Answer, Wire
from campaigns.attack.tally import Tally


AT_ONCE = 8
RACED = f"a one-time code, redeemed {AT_ONCE} times at once"
NEXT = (
    "//evil.example",
    "https://evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "javascript:alert(1)",
    "%2F%2Fevil.example",
    "/%0d%0aSet-Cookie:x=y",
    "https:evil.example",
    "http:///evil.example",
    "//evil.example%2F..",
    "///evil.example",
    "@evil.example",
    "data:text/html,x",
)
ASKED_AS = ("next", "redirect", "return_to", "url", "redirect_uri", "continue", "rd", "goto")


class Account:
    """Creates links, tokens and sessions with a server's own token."""

    def __init__(self, wire: Wire, token: str) -> None:
        self.wire = wire
        self.bearer = ("Authorization", f"Bearer {token}")
        self.origin = ("Origin", f"{'https' if wire.ca else 'http'}://127.0.0.1:{wire.port}")

    def code(self, bearer: tuple[str, str] | None = None) -> str:
        link: str = self._json("POST", "/api/v1/login-links", bearer or self.bearer)["url"]
        return link.partition("code=")[2]

    def new_token(self, name: str, *scopes: str) -> str:
        body = json.dumps({"name": name, "owner": "ada", "scopes": scopes or ["read"]}).encode()
        kind = ("Content-Type", "application/json")
        token: str = self._json("POST", "/api/v1/tokens", self.bearer, kind, body=body)["token"]
        return token

    def revoke(self, name: str) -> None:
        assert self.wire.ask("DELETE", f"/api/v1/tokens/{name}", self.bearer).status == 204

    def cookie(self, bearer: tuple[str, str] | None = None) -> str:
        answer = self.log_in(f"/login?code={self.code(bearer)}")
        assert answer.status == 303, answer
        return answer.first("set-cookie").partition(";")[0]

    def log_in(self, path: str, *headers: tuple[str, str]) -> Answer:
        """Open a one-time link."""
        return self.wire.ask("GET", path, *headers)

    def _json(self, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> Any:
        answer = self.wire.ask(method, path, *headers, body=body)
        assert answer.status in {200, 201}, answer
        return json.loads(answer.body)


def races(tally: Tally, account: Account, count: int) -> None:
    """Redeem each code with several requests at once, half of them GET and half POST: exactly one may succeed."""
    for number in range(count):
        code, ready = account.code(), threading.Barrier(AT_ONCE)

        def redeem(index: int, code: str = code, ready: threading.Barrier = ready) -> Answer:
            ready.wait()
            if index % 2:
                return account.wire.ask("GET", f"/login?code={code}")
            return account.wire.ask(
                "POST", "/login", account.origin, body=json.dumps({"key": code}).encode()
            )

        with ThreadPoolExecutor(AT_ONCE) as threads:
            statuses = [each.status for each in threads.map(redeem, range(AT_ONCE))]
        winners = sum(each in {204, 303} for each in statuses)
        for _ in range(AT_ONCE):
            tally.note(RACED, (number, statuses), held=winners == 1)


def misled(tally: Tally, account: Account, nth: int = 1) -> None:
    """Links with a foreign redirect target lead to the page; a request that does not sign in leaves the code valid."""
    for number, (name, value) in enumerate((name, value) for name in ASKED_AS for value in NEXT):
        if number % nth:
            continue
        path = f"/login?{name}={value}&code={account.code()}&{name}={value}"
        answer = account.log_in(path, ("X-Forwarded-Host", "evil.example"))
        led = (answer.status, answer.first("location"), len(answer.all("set-cookie")))
        tally.note(
            "a link that asks to lead elsewhere", (name, value, led), held=led == (303, "./", 1)
        )
    code = account.code()
    body = json.dumps({"key": code}).encode()
    evil = ("Origin", "https://evil.example")
    for method, headers in (
        ("HEAD", ()),
        ("OPTIONS", ()),
        ("POST", ()),
        ("POST", (evil,)),
        ("PUT", ()),
        ("POST", (("Origin", "null"),)),
    ):
        status = account.wire.ask(method, f"/login?code={code}", *headers, body=body).status
        tally.note(
            "a code, shown by another page or method",
            (method, headers, status),
            held=status in {0, 401, 403, 405},
        )
    last = account.log_in(f"/login?code={code}").status
    tally.note("a code, shown by another page or method", last, held=last == 303)


def guesses(tally: Tally, account: Account, count: int) -> None:
    """Guess and damage codes, tokens and sessions: all are rejected, and the good code still works."""
    code, token = account.code(), account.new_token("guessed")
    cookie = account.cookie(("Authorization", f"Bearer {token}"))
    name, _, value = cookie.partition("=")
    expiry, holder, signature = value.split(".")
    forged = [
        f"{expiry}.{signature}",
        f".{holder}.{signature}",
        f"{expiry}.own.{signature}",
        f"{expiry}..{signature}",
        f"{expiry}.{holder}.",
        f"9{expiry}.{holder}.{signature}",
        f"{expiry}.{holder}.{signature[:-1]}",
        f"{expiry}.{holder}.{signature}0",
        value.upper(),
        "\xff.\xff.\xff",
        f"{expiry}.{holder}.{signature[::-1]}",
        f"{expiry}.{holder}.{'0' * 64}",
        "..",
        "...",
        f"{expiry}.{holder}.{holder}.{signature}",
    ]
    for number in range(count):
        cut = number % len(code)
        sent = code[:cut] + ("A" if code[cut] != "A" else "B") + code[cut + 1 :]
        status = account.wire.ask("GET", f"/login?code={sent}").status
        tally.note("a wrong code", (sent, status), held=status == 401)
        cut = 7 + number % (len(token) - 7)
        sent = token[:cut] + ("A" if token[cut] != "A" else "B") + token[cut + 1 :]
        status = account.wire.ask("GET", "/api/v1/runs", ("Authorization", f"Bearer {sent}")).status
        tally.note("a wrong token", (sent, status), held=status in {401, 429})
        sent = forged[number % len(forged)]
        for header in (("Cookie", f"{name}={sent}"), ("Authorization", f"Bearer {sent}")):
            status = account.wire.ask("GET", "/api/v1/runs", header).status
            tally.note("a forged session", (header, status), held=status in {401, 429})
    last = account.log_in(f"/login?code={code}").status
    tally.note("a wrong code", last, held=last == 303)


def revoked(tally: Tally, account: Account, count: int) -> None:
    """Revoke tokens and sessions that every process has just cached: after the promised time all are rejected."""
    for number in range(count):
        token = ("Authorization", f"Bearer {account.new_token(f'gone{number}')}")
        code, cookie = account.code(token), account.cookie(token)
        voided = account.cookie()
        ways = {
            "token": token,
            "cookie of its": ("Cookie", cookie),
            "voided cookie": ("Cookie", voided),
        }
        shown = [
            account.wire.ask("GET", "/api/v1/me", way).status
            for way in ways.values()
            for _ in range(12)
        ]
        assert set(shown) == {200}, shown
        account.revoke(f"gone{number}")
        assert (
            account.wire.ask("POST", "/logout", ways["voided cookie"], account.origin).status == 204
        )
        time.sleep(KNOWN_S)  # the promised time, which this part measures
        for what, way in ways.items():
            for _ in range(12):
                status = account.wire.ask("GET", "/api/v1/me", way).status
                tally.note(f"a revoked token or session: {what}", status, held=status in {401, 429})
        status = account.log_in(f"/login?code={code}").status
        tally.note("a revoked token or session: link of its", status, held=status == 401)
