"""An HTTP client of the server's API with a token. It explains failed requests, but does not decode answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import urllib3

from ampmon.config import route_to
from ampmon.errors import AmpmonError, Unreachable
from ampmon.system.plain import TEXT_MAX, plain
from ampmon.transport import problem_in, why_unanswered
from ampmon.transport.proof import WRONG_PROOF, ProvenPool
from ampmon.transport.tunnel import PAST_SOCKS, Tunnels


_API = "/api/v1"
TIMEOUT_S = 60.0
"""A diagnosis takes less than a second for a run of any length, but a busy server may delay it."""


class ClientError(AmpmonError):
    """The request got no usable answer. The message says why and what to do.

    It may quote a server, so `plain` makes it safe to print.
    """

    def __init__(self, message: str) -> None:
        super().__init__(plain(message, TEXT_MAX))


class RequestRefused(ClientError):
    """The server answered with an error status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class ApiClient:
    """A connection to the server at ``url``. Use it as a context manager, which closes its connections.

    Raises ClientError if ``url`` is not an address, or ``token`` cannot be one.

    ``page`` is the address for a browser, or None if the server ends with this session. ``may_be_framed`` says, after a
    request, whether the server lets other pages show it in a frame. ``catch_up`` imports the records that now wait in
    spools, if no other process sends them; it blocks.
    """

    def __init__(
        self, url: str, token: str, *, lasts: bool = True, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.url = url.rstrip("/")
        if not (token.isascii() and token.isprintable()):
            raise ClientError(
                "the token has characters that are not allowed in a token, such as a line break: "
                "check AMPMON_TOKEN or the token file"
            )
        self.page = self.url if lasts else None
        self.may_be_framed = False
        self.catch_up: Callable[[], object] = lambda: None
        self._not_accepted = (
            f"{self.url} does not accept this token: pass its --data-dir or --token-file"
        )
        self.token = token
        self._headers = {"Authorization": f"Bearer {token}"}
        route = route_to(self.url)
        self._through = PAST_SOCKS if route.past_socks else ""
        try:
            place = urllib3.util.parse_url(self.url)
            self._base = place.path or ""
            host, port, time_s = place.host or "", place.port, timeout_s
            self._http: urllib3.HTTPConnectionPool
            if route.proxy is not None:
                tunnels = Tunnels(route.proxy, timeout=time_s)
                self._through = f" through the proxy {tunnels.place}"
                self._http = tunnels.connection_from_url(self.url)
            elif place.scheme == "https":
                self._http = urllib3.HTTPSConnectionPool(host, port, timeout=time_s)
            else:
                # Over plain http, the server must prove that it knows the token before it gets it.
                self._http = ProvenPool(host, port, timeout=time_s, token=token, base=self._base)
        except Unreachable as error:
            raise ClientError(f"{self.url}: {error}") from None
        except urllib3.exceptions.LocationValueError:  # it has no host, or a port that is none
            raise ClientError(
                f"{self.url} is not an address: write one such as http://127.0.0.1:8267"
            ) from None

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, fields: dict[str, str] | None = None) -> bytes:
        """Return the answer at a path under /api/v1. Blocks. Raises ClientError."""
        return self._request("GET", f"{_API}{path}", fields).data

    @contextmanager
    def stream(self, path: str, fields: dict[str, str]) -> Iterator[urllib3.BaseHTTPResponse]:
        """Yield an answer of any length, to be read in pieces. Blocks. Raises ClientError, also if it breaks off."""
        answer = self._request("GET", f"{_API}{path}", fields, preload=False)
        try:
            yield answer
        except urllib3.exceptions.HTTPError as error:
            raise ClientError(
                f"{self.url} closed the connection before its answer was complete ({type(error).__name__})"
            ) from None
        finally:
            answer.close()

    def check(self, path: str) -> None:
        """Check that ``/healthz`` or ``/readyz`` is well. Blocks. Raises ClientError, which says what is not ready."""
        self._request("GET", path)

    def post(self, path: str, body: object = None) -> bytes:
        """Post ``body`` as JSON to a path under /api/v1 and return the answer. Blocks. Raises ClientError."""
        return self._request("POST", f"{_API}{path}", body=body).data

    def patch(self, path: str, body: object) -> bytes:
        """Patch the resource at a path under /api/v1 with ``body``. Return the answer. Blocks. Raises ClientError."""
        return self._request("PATCH", f"{_API}{path}", body=body).data

    def delete(self, path: str) -> None:
        """Delete the resource at a path under /api/v1. Blocks. Raises ClientError."""
        self._request("DELETE", f"{_API}{path}")

    def _request(
        self,
        method: str,
        path: str,
        fields: dict[str, str] | None = None,
        body: object = None,
        *,
        preload: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        try:
            answer = self._http.request(
                method,
                f"{self._base}{path}",
                fields=fields,
                body=None if body is None else msgspec.json.encode(body),
                headers=self._headers,
                # A redirect could take the token to another server.
                redirect=False,
                retries=False,
                preload_content=preload,
            )
        except Unreachable as error:  # it does not prove that it holds the token
            if str(error) == WRONG_PROOF:
                raise RequestRefused(401, f"{self._not_accepted} ({error})") from None
            raise ClientError(f"{self.url}: {error}") from None
        except UnicodeEncodeError as error:  # a word of the command line in another encoding
            raise ClientError(f"{error.object!r} is not UTF-8") from None
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            # Do not show the error's message: it may quote what was sent.
            if isinstance(error, urllib3.exceptions.SSLError):
                raise ClientError(
                    f"{self.url} has a certificate that is not trusted here: set SSL_CERT_FILE to its CA certificate"
                ) from None
            why = f"does not answer{self._through} ({why_unanswered(error)})"
            raise ClientError(
                f"{self.url} {why}: start `ampmon serve` there, or pass another --url"
            ) from None
        self.may_be_framed = "X-Frame-Options" not in answer.headers
        if answer.status == 401:
            raise RequestRefused(401, self._not_accepted)
        if answer.status not in {200, 201, 204}:
            problem = problem_in(answer.data)
            detail = problem.get("detail") or problem.get("title") or f"HTTP {answer.status}"
            raise RequestRefused(answer.status, str(detail))
        return answer
