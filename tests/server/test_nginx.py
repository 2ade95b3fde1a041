"""ampmon behind a real nginx, configured for a team as docs/scaling.md says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import urllib3

from ampmon import wire
from ampmon.transport import HttpTransport
from batches import Trainer
from certificates import Authority
from nginx import Nginx
from serving import Server
from tools import NGINX
from waiting import DEADLINE_S, wait_for


pytestmark = NGINX.needed
LARGE = 3 * 2**20
"""Hex characters in the large batch. No encoding more than halves them; nginx's default limit is 1 MiB."""


@pytest.fixture
def proxy(
    new_server: Callable[..., Server], tmp_path: Path, authority: Authority
) -> Iterator[Nginx]:
    with Nginx.for_a_team(new_server(), tmp_path, *authority.issue("localhost")) as proxy:
        yield proxy


def test_a_sender_delivers_through_it(
    proxy: Nginx, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of megabytes reaches the server through nginx, over TLS that the sender verifies."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    trainer = Trainer()
    batch = trainer.batch([trainer.event("init"), *trainer.updates(3)])
    # In an unknown field: the known fields have smaller limits.
    large = {**msgspec.to_builtins(batch), "padding": os.urandom(LARGE // 2).hex()}
    with closing(HttpTransport(proxy.url, token=proxy.server.token)) as line:
        ack = line.send(msgspec.msgpack.encode(large))
    assert ack.acked == {"": 0, trainer.scaler: 2}


def test_a_browser_is_let_in_and_gets_news_at_once(proxy: Nginx, authority: Authority) -> None:
    """Behind nginx the cookie is Secure, changes need the page's own origin, and live events are not buffered."""
    trainer = Trainer()
    batch = wire.encode(trainer.batch(trainer.updates(3)))
    form = {"Content-Type": "application/msgpack"}
    assert proxy.server.request("POST", "/api/v1/ingest", body=batch, headers=form).status == 200
    run, own = f"{proxy.url}/api/v1/runs/{trainer.run_id}", {"Origin": proxy.url}

    with urllib3.PoolManager(
        ca_certs=str(authority.file), retries=False, timeout=DEADLINE_S
    ) as browser:
        entered = browser.request("GET", proxy.login_link(), redirect=False)
        header = entered.headers["Set-Cookie"]
        cookie = {"Cookie": header.partition(";")[0]}
        link = browser.request("POST", f"{proxy.url}/api/v1/login-links", headers=cookie | own)
        assert "Secure" in header
        assert json.loads(link.data)["url"].startswith(f"{proxy.url}/login?")

        def rename(**headers: str) -> int:
            body = {"name": "renamed"}
            return browser.request("PATCH", run, json=body, headers=cookie | headers).status

        news = browser.request(
            "GET", f"{proxy.url}/api/v1/live", headers=cookie, preload_content=False
        )
        assert (rename(), rename(Origin="https://localhost"), rename(**own)) == (403, 403, 200)
        wait_for(lambda: str(trainer.run_id).encode() in news.read1())
        news.close()
