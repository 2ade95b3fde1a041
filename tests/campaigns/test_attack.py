"""The attack campaign at its smallest, against a server that withstands it and one that trusts an attacker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ampmon_server.settings import Settings
from campaigns.attack import encrypted, forged, framing, links, spelled
from campaigns.attack.links import Account
from campaigns.attack.raw import Wire
from campaigns.attack.tally import Tally
from certificates import Authority
from databases import provide
from timed_server import certified, serving


NTH = 150


def test_a_server_that_holds_lets_nothing_through(tmp_path: Path) -> None:
    """Over TLS, no ambiguous body, forged header, path spelling, old TLS version or reused code gets through."""
    authority, tally = Authority(tmp_path), Tally()
    with serving(certified(_settings(tmp_path / "data"), authority)) as served:
        wire = Wire(served.port, ca=authority.file)
        token = served.service.keys.token
        account = Account(wire, token)
        framing.smuggle(tally, wire, token, NTH)
        forged.hosts(tally, wire, token, NTH)
        forged.origins(tally, wire, account.cookie(), NTH // 5)
        spelled.walk(tally, wire, account.new_token("reader", "read"), "", NTH)
        encrypted.plain(tally, wire, 1)
        encrypted.weak(tally, wire, 1)
        links.races(tally, account, 1)

    assert tally.held, tally.lines()
    assert tally.tried.total() > 60


def test_a_server_that_believes_an_attacker_is_noticed(tmp_path: Path) -> None:
    """If the attacker's address is configured as the proxy's, accepted identities are counted and named."""
    tally = Tally()
    settings = _settings(tmp_path / "data")
    believing = replace(settings, behind_proxy=("127.0.0.0/30",), user_header=forged.USER_HEADER)
    with serving(believing) as served:
        forged.identities(tally, served.port, [Wire(served.port)], NTH)

    *_, row, through = tally.lines()
    assert row.startswith("| all | ")
    assert (
        "identity from an address that is not the proxy's: (('X-Forwarded-User', 'ada'" in through
    )
    assert not tally.held


def _settings(directory: Path) -> Settings:
    directory.mkdir(mode=0o700)
    provide(directory)
    return Settings(data_directory=directory, judging=False)
