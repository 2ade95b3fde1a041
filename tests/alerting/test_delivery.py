"""Delivery through Apprise to receivers that accept, refuse, redirect, hang or are not allowed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import waiting
from ampmon_server.alerting.deliver import DEADLINE_S, guarding, is_public
from ampmon_server.alerting.delivery import deliver, words
from ampmon_server.alerting.messages import TROUBLES, DeliveryOutcome, Message, trial
from ampmon_server.alerting.targets import Target
from certificates import Authority
from connect_proxy import ConnectProxy
from http_server import HttpServer
from receiver import Receiver, receiving, written
from typed import typed


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def sent(*targets: Target, allow_private: bool = True) -> list[DeliveryOutcome]:
    """Deliver to all targets at once and return each outcome."""

    async def deliveries() -> list[DeliveryOutcome]:
        each = (
            deliver(target, trial("own", None), allow_private=allow_private) for target in targets
        )
        return await asyncio.gather(*each)

    return asyncio.run(deliveries())


def children() -> list[int]:
    """The processes that this one started to deliver a message."""
    own = str(os.getpid()).encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if (
                parent == own
                and b"ampmon_server.alerting.deliver" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
    return found


def test_a_redirect_is_not_followed_and_a_refusal_is_reported(receiver: Receiver) -> None:
    """A redirect is reported and not followed, and a 500 is reported as a refusal."""
    receiver.answer, receiver.location = 307, f"http://{receiver.netloc}/inner"
    with receiving() as other:
        other.answer = 500
        outcomes = sent(receiver.target(), other.target())

    assert outcomes == [DeliveryOutcome("redirect", 307), DeliveryOutcome("refused", 500)]
    assert receiver.paths == ["/own"]
    assert words("refused", 500) == "it refused the message (500)"


def test_a_receiver_that_hangs_is_given_up(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is ended if the receiver has not answered by the deadline."""
    let_go = threading.Event()
    pids: list[int] = []

    async def delivery() -> DeliveryOutcome:
        loop = asyncio.get_running_loop()
        now, passed = loop.time, [0.0]
        monkeypatch.setattr(loop, "time", lambda: now() + passed[0])

        def hang() -> None:
            pids.extend(children())
            passed[0] = DEADLINE_S
            loop.call_soon_threadsafe(lambda: None)  # the loop reads its clock again
            let_go.wait(waiting.DEADLINE_S)

        receiver.answer = hang
        return await deliver(receiver.target(), trial("own", None), allow_private=True)

    try:
        assert asyncio.run(delivery()) == DeliveryOutcome("slow")
    finally:
        let_go.set()
    assert pids
    assert not set(pids) & set(children())


def test_a_private_address_is_not_connected_to(receiver: Receiver) -> None:
    """Without allow_private, no connection is made to a name that resolves to this machine."""
    target = Target(name="own", url=f"json://localhost:{receiver.server_port}/own")
    assert sent(target, allow_private=False) == [DeliveryOutcome("private")]
    assert receiver.paths == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        (("93.184.216.34", 443), True),
        (("2606:2800:220:1::1", 443, 0, 0), True),
        (("64:ff9b::5db8:d822", 443, 0, 0), True),
        (("127.0.0.1", 443), False),
        (("0.0.0.0", 443), False),
        (("10.1.2.3", 443), False),
        (("169.254.169.254", 80), False),
        (("100.64.0.1", 80), False),
        (("224.0.0.1", 80), False),
        (("255.255.255.255", 80), False),
        (("::1", 443, 0, 0), False),
        (("fe80::1%eth0", 443, 0, 2), False),
        (("fd00::1", 443, 0, 0), False),
        (("::ffff:127.0.0.1", 443, 0, 0), False),
        (("::ffff:169.254.169.254", 443, 0, 0), False),
        (("64:ff9b::a9fe:a9fe", 443, 0, 0), False),
        (("2002:7f00:1::", 443, 0, 0), False),
        (("fec0::1", 443, 0, 0), False),
        (("::127.0.0.1", 443, 0, 0), False),
        (("::ffff:0:127.0.0.1", 443, 0, 0), False),
        (("64:ff9b:1::a9fe:a9fe", 443, 0, 0), False),
        (("ff0e::1", 443, 0, 0), False),
        (("localhost", 443), False),
        ("/run/docker.sock", False),
        (b"\0abstract", False),
        ((), False),
    ],
)
def test_which_addresses_are_public(address: object, public: bool) -> None:
    """Only addresses on the Internet are public, also if written as mapped or translated IPv6."""
    assert is_public(address) is public


def test_a_certificate_that_is_not_trusted_is_reported(tmp_path: Path) -> None:
    """A receiver with a certificate of an unknown authority is reported as such, and gets no message."""
    with receiving(Authority(tmp_path).issue()) as receiver:
        target = Target(name="own", url=f"jsons://{receiver.netloc}/own")
        assert sent(target) == [DeliveryOutcome("untrusted")]
    assert receiver.paths == []


def test_words_of_a_message_are_not_an_error() -> None:
    """A message with words that look like Apprise's errors does not change what is reported."""
    message = Message("ampmon: error=404", "certificate verify failed (535, b'')", "info")
    target = Target(name="own", url="json://127.0.0.1:1/own")
    outcome = asyncio.run(deliver(target, message, allow_private=True))
    assert outcome == DeliveryOutcome("unreachable")


class Mailbox(socketserver.StreamRequestHandler):
    """A mail server that knows no password."""

    def handle(self) -> None:
        self.wfile.write(b"220 mail\r\n")
        for line in self.rfile:
            ehlo = line.startswith(b"ehlo")
            self.wfile.write(
                b"250-mail\r\n250 AUTH PLAIN\r\n" if ehlo else b"535 wrong password\r\n"
            )


def test_a_refusal_by_a_mail_server_is_reported() -> None:
    """A mail server that rejects the password is reported as refusing, with its status."""
    options = "smtp=127.0.0.1&from=own@example.org&to=team@example.org"
    with HttpServer(Mailbox) as server:
        target = Target(name="mail", url=f"mailto://user:secret@{server.netloc}?{options}")
        assert sent(target) == [DeliveryOutcome("refused", 535)]


def received(
    url: str, host: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What arrives if the test message, with a link, is sent to a service whose ``host`` is on this machine."""
    authority = Authority(folder)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.file))
    with receiving(authority.issue(host)) as service:
        with ConnectProxy({f"{host}:443": service.server_port}) as proxy:
            monkeypatch.setenv("https_proxy", f"http://{proxy.netloc}")
            message = trial("own", "https://ampmon.example.org")
            asyncio.run(deliver(Target(name="own", url=url), message, allow_private=True))
        return service.got


@pytest.mark.parametrize("option", ["", "?priority=p1"])
def test_opsgenie_gets_every_kind_of_message(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that begins nothing is posted to Opsgenie too, as an alert."""
    url = f"opsgenie://0123456789-0123456789{option}"
    (got,) = received(url, "api.opsgenie.com", tmp_path, monkeypatch)
    assert got["message"] == "ampmon: test alert"


def test_links_lead_somewhere_where_text_is_markdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service whose messages are Markdown, such as Teams, gets a link without backslashes."""
    url = "workflows://prod.logic.azure.com/643e69f83c8944/ABcD1234"
    (got,) = received(url, "prod.logic.azure.com", tmp_path, monkeypatch)
    assert "https://ampmon.example.org/" in str(got)


def test_no_program_is_run() -> None:
    """The guard forbids starting a program and permits connections and files."""
    audit = guarding([], allow_private=True)
    for event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        with pytest.raises(PermissionError):
            audit(event, ())
    audit("socket.connect", (None, ("127.0.0.1", 80)))
    audit("open", ("/etc/hosts", "r", 0))


def test_targets_are_tried(receiver: Receiver, tmp_path: Path) -> None:
    """`ampmon alerts test` reports for each target whether the message was sent, and exits with 1 on a failure."""
    text = f"""
allow_private = true
[[targets]]
name = "own"
url = "json://{receiver.netloc}/own"
[[targets]]
name = "nobody"
url = "json://user:hunter2@127.0.0.1:9/x"
"""
    file = ("--alerts", written(tmp_path / "alerts.toml", text))
    code, printed, _ = typed("alerts", "test", *file)
    assert code == 1
    assert printed == "own (json): sent\nnobody (json): not sent: it could not be reached\n"
    assert typed("alerts", "test", "own", *file).code == 0
    assert [each["title"] for each in receiver.got] == ["ampmon: test alert"] * 2
    assert "Alerts of ampmon arrive here" in receiver.got[0]["message"]
    code, _, err = typed("alerts", "test", "else", *file)
    assert code == 2
    assert "there are own, nobody" in err


def test_every_trouble_has_words() -> None:
    """Every failure has its own complete message."""
    reasons = [words(each, None) for each in TROUBLES]
    assert len(set(reasons)) == len(TROUBLES)
    assert not any("{" in each for each in reasons)
