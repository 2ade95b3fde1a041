"""The alerts file: its targets and policy, and the reasons for rejecting it."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path

import pytest

from ampmon.errors import ConfigurationError
from ampmon_server.alerting.targets import (
    ENCRYPTED,
    PLAIN,
    Target,
    check,
    read,
)
from receiver import written


FILE = """
public_url = "https://ampmon.example.org/team/"
[[targets]]
name = "oncall"
url = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/"
least = "critical"
projects = ["vision"]
[[targets]]
name = "mail"
url = "mailtos://ada:hunter2@example.org"
[policy]
hourly = 5
[policy.after_s]
warning = 30
"""


def refusal(path: Path, **more: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read(path, **more)
    line = str(refused.value)
    assert "\n" not in line
    assert "hunter2" not in line
    return line


def test_a_file_says_which_target_gets_which_alert(tmp_path: Path) -> None:
    """A file defines targets with their lowest severity and projects, and may set only parts of the policy."""
    alerts = read(written(tmp_path / "alerts.toml", FILE))
    names = [
        [target.name for target in alerts.wanting(*of)]
        for of in (("vision", "critical"), ("vision", "warning"), ("text", "critical"))
    ]

    assert names == [["oncall", "mail"], ["mail"], ["mail"]]
    assert alerts.wanting("vision", "notice") == []
    assert alerts.public_url == "https://ampmon.example.org/team"
    assert (alerts.policy.hourly, alerts.policy.cool_down_s) == (5, 900)
    assert alerts.policy.after_s.warning == 30
    assert "hunter2" not in repr(alerts)
    assert pickle.loads(pickle.dumps(alerts)) == alerts  # as worker processes receive it
    assert (
        read(tmp_path / "alerts.toml", "http://localhost:8267").public_url
        == "http://localhost:8267"
    )


@pytest.mark.parametrize(
    ("changed", "to", "reason"),
    [
        ('name = "mail"', 'name = "oncall"', "two targets are called 'oncall'"),
        (
            'least = "critical"',
            'least = "fatal"',
            "'fatal' - at `$.targets[0].least`; write critical, warning or notice",
        ),
        ("hourly = 5", "hourly = 0", "`$.policy.hourly`"),
        ("hourly = 5", "hourlies = 5", "unknown field `hourlies`"),
        ("hourly = 5", "hourly = = 5", "(at line 12"),
        ("mailtos://", "exec://", "target 2, 'mail': url: its scheme is none of"),
        ("mailtos://", "mailto://", "mailto:// is not encrypted"),
        ("hunter2", "h#pem-hunter2", "url: options that begin with 'pem' are not allowed"),
        ("public_url", "publicurl", "unknown field `publicurl`"),
        ("https://ampmon", "ampmon", "public_url must be the page's address"),
        ("ampmon.example.org/team", "[::1", "public_url must be the page's address"),
        ("ampmon.example.org/team", "ampmon.example.org:page", "public_url must be the page's"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(
    tmp_path: Path, changed: str, to: str, reason: str
) -> None:
    """An error is one line with the file, the place and the reason, without a password."""
    path = written(tmp_path / "alerts.toml", FILE.replace(changed, to))

    assert reason in refusal(path)
    assert str(path) in refusal(path)


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_secret_that_root_gave_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root-owned file that the group may only read is accepted; one with more permissions is rejected."""
    if os.geteuid() != 0:
        pytest.skip("only root makes files of root's")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert read(written(tmp_path / "alerts.toml", FILE, 0o440)).targets
    for mode in (0o444, 0o460, 0o644):
        assert "chmod 600" in refusal(written(tmp_path / "alerts.toml", FILE, mode))


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """A file that others may read is rejected with the chmod command that fixes it."""
    for mode in (0o640, 0o604, 0o644, 0o660):
        path = written(tmp_path / "alerts.toml", FILE, mode)
        assert f"chmod 600 {path}" in refusal(path)
    assert "No such file" in refusal(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "dbus://",
        "syslog://",
        "rsyslog://localhost",
        "gnome://",
        "macosx://",
        "windows://",
        "amqps://host/queue",
        "ircs://host/channel",
        "apprises://host/token",
        "http://169.254.169.254/latest/meta-data",
        "https://example.org/config.yml",
        "jsons://example.org/x?redirect=yes",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/?template=/etc/passwd",
        "mailtos://ada:pw@example.org?PGP=yes&pgpprv=/root/key",
        "mailtos://ada:pw@example.org?mode=insecure",
        "jsons://example.org/x?verify=no",
        "jsons://example.org/x?a=b;verify=no",
        "jsons://example.org/x#?verify=no",
        "jsons://example.org/x?a=b#&redirect=yes",
        "jsons://example.org/x?%20ATTACH+=/etc/passwd",
        "json://example.org",
        "JSON://example.org",
        "jsons://[not-an-address/",
        "",
        "nothing",
    ],
)
def test_what_reads_runs_or_speaks_in_the_clear_is_refused(url: str) -> None:
    """Targets that read files, run programs or do without TLS are rejected, and so are such options."""
    with pytest.raises(ConfigurationError):
        check(Target(name="bad", url=url), allow_private=False)


def test_what_is_allowed_is_there() -> None:
    """Apprise supports every allowed scheme, and the encrypted ones are encrypted."""
    from apprise.manager_plugins import NotificationManager

    secure, plain = set(), set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some plugins load deprecated modules
        plugins = list(NotificationManager().plugins(False))
    for plugin in plugins:
        for kinds, of in ((secure, plugin.secure_protocol), (plain, plugin.protocol)):
            kinds.update([of] if isinstance(of, str) else of or [])

    assert secure >= ENCRYPTED
    assert plain >= PLAIN
    assert not plain & ENCRYPTED
