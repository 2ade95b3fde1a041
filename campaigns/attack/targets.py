"""Alert targets that lead into a private network: by address, name, redirect or DNS rebinding."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import random
import subprocess
import sys
from collections.abc import Iterator

from ampmon.errors import ConfigurationError
from ampmon_server.alerting.deliver import is_public
from ampmon_server.alerting.delivery import deliver
from ampmon_server.alerting.messages import trial
from ampmon_server.alerting.targets import Target, check
from campaigns.attack.tally import Tally, every
from receiver import receiving


PRIVATE = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/29",
    "192.0.2.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
IPV6 = (
    "::1/128",
    "::/128",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    "100::/64",
    "2001:db8::/32",
    "::/96",
    "64:ff9b:1::/48",
)
WITHIN = ("::ffff:{0}", "::ffff:0:{0}", "::{0}", "64:ff9b::{0}", "64:ff9b:1::{0}")
LOOPBACK = (
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "0",
    "0.0.0.0",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1.",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::]",
    "127.255.255.254",
    "%31%32%37.0.0.1",
    "\uff11\uff12\uff17.0.0.1",
    "user@127.0.0.1",
    "169.254.169.254",
)
OPTIONS = (
    "verify=no",
    "redirect=yes",
    "attach=/etc/passwd",
    "template=/etc/passwd",
    "include=http://127.0.0.1/",
    "pem=/etc/passwd",
)
AROUND = (
    "?{0}",
    "?a=b&{0}",
    "?a=b;{0}",
    "?;{0}",
    "?&{0}",
    "#?{0}",
    "?a=b#&{0}",
    "?a=b#;{0}",
    "/x?%20{0}",
    "?{0}%20",
    "?\t{0}",
    "?A=b&{1}",
    "/?x#?{0}",
    "?a=b&%0A{0}",
    "?a=b?c&{0}",
)
_REBOUND = """
import json, socket, sys
from ampmon_server.alerting import deliver
own, asked = socket.getaddrinfo, []
def resolved(host, port, *more, **named):
    if host != "rebound.example":
        return own(host, port, *more, **named)
    asked.append(host)
    return own("93.184.216.34" if len(asked) == 1 and {first_public} else "127.0.0.1", port, *more, **named)
socket.getaddrinfo = resolved
try:
    socket.getaddrinfo("rebound.example", 80)  # as one that checks a name before it connects
except OSError:
    pass
met = []
sys.addaudithook(deliver.guarding(met, allow_private=False))
order = {{"url": "json://rebound.example:{port}/own", "title": "t", "body": "b", "kind": "info"}}
print(json.dumps(deliver.send(order, met)))
"""


def addresses(tally: Tally, count: int) -> None:
    """Random private addresses from every range, plain and embedded in IPv6: none counts as public."""
    choice = random.Random(0)

    def held(kind: str, address: str) -> None:
        tally.note(kind, address, held=not is_public((address, 443)))

    for network in map(ipaddress.ip_network, (*PRIVATE, *IPV6)):
        for _ in range(count):
            found = network[choice.randrange(network.num_addresses)]
            held("a private address, to the guard of alerts", str(found))
            if isinstance(found, ipaddress.IPv4Address):
                for form in WITHIN:
                    held("a private address within one of IPv6", form.format(found))
                packed = int(found)
                held(
                    "a private address within one of IPv6",
                    str(ipaddress.IPv6Address((0x2002 << 112) | (packed << 80) | 1)),
                )
                held(
                    "a private address within one of IPv6",
                    str(ipaddress.IPv6Address((0x20010000 << 96) | (packed ^ 0xFFFFFFFF))),
                )


def options(tally: Tally) -> None:
    """Options that disable TLS checks, follow redirects or read files, wherever Apprise parses them."""
    for option in OPTIONS:
        for around in AROUND:
            name, _, value = option.partition("=")
            spelled = "".join(f"%{ord(each):02x}" for each in name) + f"={value}"
            url = f"jsons://hooks.example/x{around.format(option, spelled)}"
            tally.note(
                "an option of a target that opens it",
                url,
                held=_read_by_apprise(url, name) is False or not _taken(url),
            )


def _taken(url: str) -> bool:
    try:
        check(Target(name="own", url=url), allow_private=False)
    except ConfigurationError:
        return False
    return True


def _read_by_apprise(url: str, name: str) -> bool:
    from apprise.utils.parse import parse_url

    return name in ((parse_url(url) or {}).get("qsd") or {})


def delivered(tally: Tally, nth: int = 1) -> None:
    """Send messages to this machine through spellings of its address, redirects and changing names: none arrives."""
    with receiving() as inner, receiving() as leading:
        urls = [f"json://{host}:{inner.server_port}/own" for host in every(LOOPBACK, nth)]
        for url, trouble in zip(urls, _outcomes(urls, allow_private=False), strict=True):
            tally.note(
                "a message to this machine",
                (url, trouble),
                held=trouble is not None and not inner.paths,
            )
        for status in (301, 302, 303, 307, 308)[::nth]:
            leading.answer, leading.location = status, f"http://{inner.netloc}/inner"
            (trouble,) = _outcomes([f"json://{leading.netloc}/own"], allow_private=True)
            tally.note(
                "a message that is redirected",
                (status, trouble),
                held=trouble == "redirect" and not inner.paths,
            )
        for public in (False, True)[::nth]:
            script = _REBOUND.format(port=inner.server_port, first_public=public)
            done = subprocess.run(
                [sys.executable, "-c", script], capture_output=True, timeout=120, check=True
            )
            result = json.loads(done.stdout)
            tally.note(
                "a name that changes after it was checked",
                result,
                held=result[0] == "private" and not inner.paths,
            )


def _outcomes(urls: list[str], *, allow_private: bool) -> Iterator[str | None]:
    async def sent() -> list[str | None]:
        found: list[str | None] = []
        for first in range(0, len(urls), 2):
            each = (
                deliver(
                    Target(name="own", url=url), trial("own", None), allow_private=allow_private
                )
                for url in urls[first : first + 2]
            )
            found += [outcome.trouble for outcome in await asyncio.gather(*each)]
        return found

    return iter(asyncio.run(sent()))
