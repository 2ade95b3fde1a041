"""Resolves the settings of a run: arguments first, then AMPMON_* variables, then defaults.

Only this module reads the environment.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import re
import socket
import sys
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from ampmon import wire
from ampmon.errors import ConfigurationError
from ampmon.system import private, signals


DEFAULT_URL = "http://127.0.0.1:8267"
EVERY_MAX = 200
"""The longest interval between samples, in updates, however expensive a sample is."""

TAGS_MAX = 64
SPOOL_BYTES = 2**30
SPOOL_BYTES_MIN = 2**20

VARIABLES = tuple(
    f"AMPMON_{name}"
    for name in ("DIR", "MODE", "NAME", "PROJECT", "QUIET", "RUN_ID", "SPOOL_BYTES", "TOKEN", "URL")
)
"""The environment variables that ampmon reads."""

_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d|$)")
"""Kubernetes sets variables of this form in each pod for a service called `ampmon`."""

Mode: TypeAlias = Literal["online", "offline", "disabled"]
MODES: tuple[Mode, ...] = ("online", "offline", "disabled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of a monitored scaler: what it measures, and how often.

    Raises ConfigurationError for invalid values.
    """

    every: int | Literal["auto"] = "auto"
    """Updates between samples of the gradients, or "auto" to stay within `budget`."""
    budget: float = 0.01
    """Share of the training time that the monitor may take if `every` is "auto": above 0, at most 1."""
    sample: int | Literal["all"] = 16384
    """Elements measured per tensor and sample on a CPU, at least 16, or "all". CUDA always measures all."""
    activations: int | None = None
    """Updates between samples of module outputs and of their fp16 gradients; None for off.

    Needs the scaler's ``model=``. Modules have hooks only in sampled updates. A sample reads every output once, and
    `sample` elements of every gradient. The budget does not limit this cost.
    """
    ranks: tuple[int, ...] | None = None
    """Ranks that sample gradients. None: rank 0 if gradients are replicated, all ranks if they are sharded."""

    def __post_init__(self) -> None:
        if self.every != "auto" and not _is_count(self.every, 1):
            raise ConfigurationError(
                f"every={self.every!r}: must be a whole number of updates of at least 1, or 'auto'"
            )
        if not (
            isinstance(self.budget, (int, float))
            and math.isfinite(self.budget)
            and 0 < self.budget <= 1
        ):
            raise ConfigurationError(
                f"budget={self.budget!r}: must be a share of the step time above 0 and at most 1"
            )
        if self.sample != "all" and not _is_count(self.sample, 16):
            raise ConfigurationError(
                f"sample={self.sample!r}: must be a whole number of elements of at least 16, or 'all'"
            )
        if self.activations is not None and not _is_count(self.activations, 1):
            raise ConfigurationError(
                f"activations={self.activations!r}: must be a whole number of updates of at least 1, or None"
            )
        if self.ranks is not None and not all(_is_count(rank, 0) for rank in self.ranks):
            raise ConfigurationError(f"ranks={self.ranks!r}: must be None, or ranks of at least 0")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The resolved settings of a run. Only ``run_id`` may still be open (None)."""

    url: str
    dir: Path
    mode: Mode
    project: str
    name: str
    run_id: UUID | None
    resume_step: int | None
    token: str | None
    tags: tuple[str, ...]
    config: dict[str, object]
    named: bool = True
    """Whether the user named the address. Else it is that of the server on the data directory, or the default."""
    spool_bytes: int = SPOOL_BYTES
    """Disk space that the unsent records of one process may take, in bytes, and as much again for rejected ones."""
    quiet: bool = False
    """Whether to print nothing if all goes well."""


def data_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of token, spools and the server's database: ``AMPMON_DIR``, else the user's data directory.

    Raises ConfigurationError if there is no home directory.
    """
    if given := environment.get("AMPMON_DIR"):
        return _from_start(Path(given).expanduser())
    try:
        home = Path.home()
    except RuntimeError:
        raise ConfigurationError(
            "there is no home directory: set AMPMON_DIR to a directory that you can write to"
        ) from None
    if sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        base = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    return _from_start(base / "ampmon")


def _from_start(path: Path) -> Path:
    """The absolute path, relative to where the process started: it may have changed its folder, as Hydra does."""
    if path.is_absolute():
        return path
    # Torch imports it early, and a spawned process gets the folder of its parent.
    from multiprocessing import process

    return Path(getattr(process, "ORIGINAL_DIR", None) or "", path).absolute()


def address_file(directory: Path) -> Path:
    """The file in which the server on a data directory writes its own address."""
    return directory / "server" / "address"


def server_address(directory: Path) -> str | None:
    """The address of the server on a data directory, or of one that was killed there; else None. Never raises."""
    try:
        return _url(private.read(address_file(directory)).decode("ascii").strip())
    except (OSError, ValueError, ConfigurationError):
        return None


def answers(url: str | None) -> bool:
    """Whether a server accepts connections at ``url``. Blocks for at most half a second. Never raises."""
    if not url:
        return False
    with contextlib.suppress(OSError, ValueError):
        place = urllib.parse.urlsplit(url)
        port = place.port or (443 if place.scheme == "https" else 80)
        socket.create_connection((place.hostname or "", port), timeout=0.5).close()
        return True
    return False


def resolve(  # noqa: PLR0913 - one argument per option of `ampmon.init`
    *,
    project: str | None = None,
    name: str | None = None,
    config: Mapping[str, object] | None = None,
    url: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    run_id: str | UUID | None = None,
    resume_step: int | None = None,
    mode: str | None = None,
    tags: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> RunOptions:
    """Resolve options from arguments, then the environment, then defaults.

    Raises ConfigurationError, which names the invalid option.
    """
    named = url or environment.get("AMPMON_URL")
    place = Path(dir).expanduser().absolute() if dir is not None else data_directory(environment)
    return RunOptions(
        url=_url(named or server_address(place) or DEFAULT_URL),
        named=bool(named),
        dir=place,
        mode=_mode(mode or environment.get("AMPMON_MODE") or "online"),
        project=clean_name(project or environment.get("AMPMON_PROJECT") or "default"),
        name=clean_name(name or environment.get("AMPMON_NAME") or _script_name()),
        run_id=_run_id(run_id or environment.get("AMPMON_RUN_ID")),
        resume_step=_resume_step(resume_step),
        token=environment.get("AMPMON_TOKEN") or None,
        tags=_tags(tags),
        config=dict(config or {}),
        spool_bytes=_spool_bytes(environment.get("AMPMON_SPOOL_BYTES") or str(SPOOL_BYTES)),
        quiet=environment.get("AMPMON_QUIET") not in {None, "", "0"},
    )


def is_loopback(host: str | None) -> bool:
    """Whether a URL's host name is this machine's, as ``localhost`` or ``::1``."""
    with contextlib.suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    return False


class Route(msgspec.Struct, frozen=True):
    """How to reach an https server: through ``proxy``, trusting ``authorities``, a file of certificates.

    None stands for no proxy, and for the authorities that the process trusts anyway. ``past_socks``: ALL_PROXY names a
    SOCKS proxy, which is not used.
    """

    proxy: str | None = None
    authorities: str | None = None
    past_socks: bool = False


def route_to(url: str) -> Route:
    """The route to a server that this process's environment describes."""
    authorities = os.environ.get("SSL_CERT_FILE")
    proxy, other = _proxies_for(url)
    # It is there for other programs, and the server may well be reached without it.
    past_socks = not proxy and (other or "").lower().startswith("socks")
    return Route(
        proxy or (None if past_socks else other),
        os.path.abspath(authorities) if authorities else None,
        past_socks,
    )


def _proxies_for(url: str) -> tuple[str | None, str | None]:
    """HTTPS_PROXY and ALL_PROXY, if ``url`` is of an https server elsewhere that NO_PROXY does not except."""
    with contextlib.suppress(ValueError):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "https" and not is_loopback(parts.hostname):
            from urllib.request import getproxies_environment, proxy_bypass

            proxies = getproxies_environment()
            # With the port, because NO_PROXY may name one.
            if not (proxy_bypass(parts.netloc) or _is_in(parts.hostname, proxies.get("no", ""))):
                return proxies.get("https"), proxies.get("all")
    return None, None


def _is_in(host: str | None, networks: str) -> bool:
    """Whether a host is an address in one of these networks, which Python's own NO_PROXY does not know."""
    for each in networks.split(","):
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host or "") in ipaddress.ip_network(each.strip()):
                return True
    return False


def unknown_variables(environment: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Variables that begin with ``AMPMON_`` but are not ours, each with the most similar one that is."""
    import difflib

    unknown = [
        name
        for name in environment
        if name.startswith("AMPMON_") and not (name in VARIABLES or _OF_KUBERNETES.search(name))
    ]
    return [(each, difflib.get_close_matches(each, VARIABLES, 1, 0.0)[0]) for each in unknown]


def _url(value: str) -> str:
    if not value.startswith(("http://", "https://")) or any(c.isspace() for c in value):
        raise ConfigurationError(
            f"url {value!r} (AMPMON_URL): must be an address such as {DEFAULT_URL}"
        )
    return value.partition("#")[0].rstrip("/")  # without the page's part of a browser's address


def _mode(value: str) -> Mode:
    if value not in MODES:
        raise ConfigurationError(f"mode {value!r} (AMPMON_MODE): must be one of {', '.join(MODES)}")
    return value


def _run_id(value: str | UUID | None) -> UUID | None:
    if not value or isinstance(value, UUID):
        return None if value == "" else value
    try:
        return UUID(value)
    except ValueError:
        raise ConfigurationError(
            f"run_id {value!r} (AMPMON_RUN_ID): must be a UUID, such as ampmon.init() creates"
        ) from None


def _resume_step(value: int | None) -> int | None:
    if value is not None and not _is_count(value, 0):
        raise ConfigurationError(
            f"resume_step={value!r}: must be the step of the first update, at least 0"
        )
    return value


def _spool_bytes(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < SPOOL_BYTES_MIN:
        raise ConfigurationError(
            f"AMPMON_SPOOL_BYTES={value!r}: must be a number of bytes of at least {SPOOL_BYTES_MIN}"
        )
    return int(value)


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    if isinstance(tags, str) or len(tags) > TAGS_MAX:
        raise ConfigurationError(f"tags={tags!r}: must be a list of at most {TAGS_MAX} names")
    return tuple(clean_name(tag) for tag in tags)


def clean_name(name: object) -> str:
    """A name as the server accepts it: printable, visible, and at most 256 characters."""
    text = str(name)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    # The cut may end in a space.
    printable = text.strip()[:256].strip()
    return printable if re.search(wire.VISIBLE, printable) else "unnamed"


def _script_name() -> str:
    path = Path(sys.argv[0] if sys.argv else "")
    script = path.parent.name if path.name == "__main__.py" else path.stem  # package with `-m`
    if script == "default_worker" and "ray" in sys.modules:
        return _ray_task()
    return script if script not in {"", "-", "-c", "-m"} else "python"


def _ray_task() -> str:
    """The task of a Ray worker, such as `train` or `Trainer.fit`. The worker does not know the script."""
    try:
        return str(sys.modules["ray"].get_runtime_context().get_task_name() or "ray")
    except Exception as error:  # a Ray without the method, or a worker without a task
        signals.let_through(error)
        return "ray"
