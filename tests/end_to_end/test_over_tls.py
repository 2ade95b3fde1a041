"""A training, its sender process, and a server with its own certificate, over https."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ampmon
from certificates import Authority
from serving import Server
from training import stored
from waiting import DEADLINE_S, wait_for


def test_records_go_over_tls(
    tmp_path: Path, new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an https address and the CA in SSL_CERT_FILE, every update of a training arrives."""
    authority = Authority(tmp_path)
    cert, key = authority.issue()
    server = new_server(options=["--tls-cert", str(cert), "--tls-key", str(key)], ca=authority.file)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    monkeypatch.setenv("AMPMON_URL", server.url)
    monkeypatch.setenv("AMPMON_MODE", "online")
    run_id = ampmon.init("tests", "tls")
    model = torch.nn.Linear(8, 8)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), ampmon.GradScaler("cpu")
    for _ in range(20):
        scaler.scale(model(torch.ones(4, 8)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    ampmon.finish(deadline_s=DEADLINE_S)

    assert wait_for(lambda: stored(server, str(run_id)) == 20)
