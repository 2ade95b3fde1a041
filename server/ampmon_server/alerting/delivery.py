"""Sends a message in a separate process, within a deadline, and puts the outcome into words."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import msgspec

from ampmon.system import installing, interpreter
from ampmon_server.alerting.deliver import DEADLINE_S
from ampmon_server.alerting.messages import DeliveryOutcome, Message, Trouble
from ampmon_server.alerting.targets import Target


_WORDS: dict[Trouble, str] = {
    "failed": "the sending process failed",
    "missing": f"Apprise is not installed: {installing.install('alerts')}",
    "private": "its address is private: set allow_private = true",
    "redirect": "it answered with a redirect{status}: use the new address",
    "refused": "it refused the message{status}",
    "removed": "it is no longer in the configuration",
    "slow": f"it did not answer within {DEADLINE_S} s",
    "unreachable": "it could not be reached",
    "untrusted": "its certificate is not trusted",
    "unusable": "Apprise cannot use its URL",
}

_PASSED = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "SYSTEMROOT")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def words(trouble: Trouble, status: int | None) -> str:
    """Why a message was not delivered, as the end of a sentence."""
    return _WORDS[trouble].format(status="" if status is None else f" ({status})")


async def deliver(target: Target, message: Message, *, allow_private: bool) -> DeliveryOutcome:
    """Send a message within `DEADLINE_S` and return the outcome. Raises only when cancelled."""
    order = {"url": target.url, "allow_private": allow_private, **message._asdict()}
    try:
        process = await asyncio.create_subprocess_exec(
            *interpreter.command("ampmon_server.alerting.deliver"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=interpreter.ROOT,
            env=_environment(allow_private=allow_private),
        )
    except (OSError, NotImplementedError):  # some event loops on Windows cannot start a process
        return DeliveryOutcome("failed")
    try:
        # Not as an argument, which other users can see: the URL may hold a password.
        output, _ = await asyncio.wait_for(
            process.communicate(msgspec.json.encode(order)), DEADLINE_S
        )
    except asyncio.TimeoutError:
        return DeliveryOutcome("slow")
    except OSError:
        return DeliveryOutcome("failed")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    try:
        return msgspec.json.decode(output, type=DeliveryOutcome)
    except msgspec.DecodeError:
        return DeliveryOutcome("failed")


def _environment(*, allow_private: bool) -> dict[str, str]:
    """Pass on few variables. A proxy bypasses the address check, so pass proxies only with ``allow_private``."""
    names = {*_PASSED, *(_PROXIES if allow_private else ())}
    passed = {
        name: value for name, value in os.environ.items() if name in names or name.lower() in names
    }
    # Without a home, requests finds no ~/.netrc, whose passwords it would send.
    return {**passed, "HOME": os.devnull}
