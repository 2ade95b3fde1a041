"""Reaches an https server through a proxy, which learns the server's name, but neither token nor records.

Plain http never goes through a proxy. It would read the token, and may open a connection for each request, while the
server proves itself once per connection.
"""

from __future__ import annotations

from urllib.parse import unquote

import urllib3
from urllib3.connection import HTTPSConnection

from ampmon.errors import Unreachable


PAST_SOCKS = " without the SOCKS proxy of ALL_PROXY, which ampmon cannot use"
"""How a server was tried whose `Route` is ``past_socks``, after "no answer"."""


class Tunnels(urllib3.ProxyManager):
    """Connections to https servers through ``proxy``, such as `http://user:password@host:port`. Raises Unreachable.

    ``place`` is its address without the password.
    """

    def __init__(self, proxy: str, *, timeout: float) -> None:
        try:
            url = urllib3.util.parse_url(proxy if "://" in proxy else f"http://{proxy}")
            if not url.host:
                raise ValueError("no host")
            auth = unquote(url.auth) if url.auth else None
            headers = urllib3.make_headers(proxy_basic_auth=auth)
            super().__init__(url._replace(auth=None).url, timeout=timeout, proxy_headers=headers)
        except ValueError:
            raise Unreachable(
                "HTTPS_PROXY is not an address such as http://proxy.example:3128. ALL_PROXY stands in for it. SOCKS "
                "cannot be used: set HTTPS_PROXY, or list the server in NO_PROXY"
            ) from None
        self.place = url.netloc or ""

    def connection(
        self, host: str, port: int | None, ca_certs: str | None, ca_cert_dir: str | None
    ) -> HTTPSConnection:
        """A connection to a server, which `connect` opens. An IPv6 address is in brackets."""
        assert self.proxy is not None, "a ProxyManager has a proxy"
        connection = HTTPSConnection(
            (self.proxy.host or "").strip("[]"),
            self.proxy.port,
            timeout=self.connection_pool_kw["timeout"],
            proxy=self.proxy,
            proxy_config=self.proxy_config,
            ca_certs=ca_certs,
            ca_cert_dir=ca_cert_dir,
        )
        connection.set_tunnel(host, port, self.proxy_headers, self.proxy.scheme or "http")
        return connection
