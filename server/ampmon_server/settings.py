"""How the server is set up: where data lies, where it listens, how much it takes. Knows nothing of HTTP or SQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ampmon.config import DEFAULT_URL, address_file, data_directory
from ampmon_server.alerting.targets import Alerts
from ampmon_server.model.thresholds import Thresholds


LogFormat = Literal["text", "json"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = int(DEFAULT_URL.rpartition(":")[2])
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Names under which a server on this machine is addressed, as they stand in a Host header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values for `ampmon_server.http.app.create_app`. Paths need not exist yet."""

    data_directory: Path = field(default_factory=data_directory)
    database_url: str | None = None
    """An SQLAlchemy URL; None for the SQLite file in the data directory."""
    token_file: Path | None = None
    """A file with the token that several servers share; None for the data directory's own."""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allowed_hosts: tuple[str, ...] = ()
    """Names beside those of the loopback interface that a Host header may hold.

    With a port they are also addresses that others dial, as where the server's own port is forwarded.
    """
    tls_cert: Path | None = None
    """A file with the certificate that the server shows; None where it speaks no TLS."""
    tls_key: Path | None = None
    """A file with that certificate's key."""
    behind_proxy: tuple[str, ...] = ()
    """Addresses of proxies that end TLS: beyond the loopback interface no others are taken. Empty for no such limit."""
    user_header: str | None = None
    """The header in which such a proxy names who has signed in there; None to believe nobody."""
    user_scopes: tuple[str, ...] = ("read", "ingest")
    """What those people may do."""
    user_projects: tuple[str, ...] | None = None
    """The projects that they see and write; None for all."""
    base_path: str = ""
    """The path under which a proxy shows the server, as "/user/me/ampmon"; whether it takes that off or not."""
    frame_ancestors: tuple[str, ...] = ()
    """Origins whose pages may show this one in a frame, as a Content-Security-Policy writes them."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of other sites whose scripts may read answers to requests that carry a token."""
    body_bytes_max: int = 16 * 2**20
    """The largest request body as it is sent."""
    decoded_bytes_max: int = 64 * 2**20
    """The largest batch once it is decompressed."""
    head_seconds_max: float = 20.0
    """How long a request's line and headers may take to arrive."""
    body_seconds_max: float = 60.0
    """How long a request body may take to arrive, and what is left of one that was answered before."""
    unread_seconds_max: float = 60.0
    """How long an answer is kept at least while nothing of it is read, and at most twice as long."""
    requests_per_s: float = 500.0
    """How many requests a second may come with one token, to this process; four seconds' worth at once after a rest."""
    streams_per_token_max: int = 500
    """How many event streams may be open with one token, and with cookies that came of it."""
    streams_max: int = 1000
    """How many altogether."""

    keep_rows_days: float | None = None
    """How long after its last record a run keeps its updates and logged values; None for ever."""
    keep_samples_days: float | None = None
    """How long it keeps its samples of gradients and activations."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    """The thresholds of findings."""
    judging: bool = True
    """Whether runs are judged as their records arrive, and not only when somebody asks."""

    drain_seconds: float = 0.0
    """For so long after a signal a server says at `/readyz` that it stops, and serves as before."""

    idle_seconds_max: float | None = None
    """A server that nobody has asked for so long stops; None for one that stays."""

    alerts: Alerts | None = None
    """Whom findings are sent to, and how often; None for nobody."""

    forward: tuple[str, ...] = ()
    """Where runs are forwarded to, as "tensorboard:DIR" or "mlflow:URI"."""

    run_metrics: int = 0
    """How many running runs `/metrics` shows at most, by name."""

    log_format: LogFormat = "text"
    """How `ampmon serve` writes its log."""

    @property
    def server_directory(self) -> Path:
        return self.data_directory / "server"

    @property
    def address_file(self) -> Path:
        """Where a running server writes its own address."""
        return address_file(self.data_directory)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database."""
        return self.database_url or f"sqlite:///{self.server_directory / 'ampmon.db'}"
