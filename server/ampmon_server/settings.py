"""The server's settings: data directory, addresses, limits and optional features. Contains no HTTP and no SQL."""

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
"""Names of this machine's loopback interface, as in a Host header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings for `ampmon_server.http.app.create_app`. Paths need not exist yet."""

    data_directory: Path = field(default_factory=data_directory)
    database_url: str | None = None
    """An SQLAlchemy URL; None for the SQLite file in the data directory."""
    token_file: Path | None = None
    """A file with a token that several servers share; None for the data directory's own token."""
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    allowed_hosts: tuple[str, ...] = ()
    """Names that a Host header may contain, in addition to the loopback names.

    A name with a port is also an address of this server, for example when that port is forwarded to it.
    """
    tls_cert: Path | None = None
    """The file of the server's TLS certificate; None for plain HTTP."""
    tls_key: Path | None = None
    behind_proxy: tuple[str, ...] = ()
    """Addresses of proxies that terminate TLS. Of other machines, only these may connect; any may if it is empty."""
    user_header: str | None = None
    """The header in which such a proxy names its signed-in user; None to trust no such header."""
    user_scopes: tuple[str, ...] = ("read", "ingest")
    """The scopes of those users."""
    user_projects: tuple[str, ...] | None = None
    """The projects that those users see and write; None for all."""
    base_path: str = ""
    """The path under which a proxy serves this server, as "/user/me/ampmon". The proxy may strip it or keep it."""
    frame_ancestors: tuple[str, ...] = ()
    """Origins whose pages may show this server's page in a frame, in the syntax of a Content-Security-Policy."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of other sites whose scripts may read the responses to requests with a token (CORS)."""
    body_bytes_max: int = 16 * 2**20
    """Maximum size of a request body as sent."""
    decoded_bytes_max: int = 64 * 2**20
    """Maximum size of a batch after decompression."""
    head_seconds_max: float = 20.0
    """Timeout for a request's line and headers."""
    body_seconds_max: float = 60.0
    """Timeout for a request body, and for the rest of a body whose request was answered early."""
    unread_seconds_max: float = 60.0
    """Timeout for a response of which the client reads less than 16 KiB. It ends after once to twice this time."""
    requests_per_s: float = 500.0
    """Maximum requests per second with one token, per process. After a pause, four seconds' worth may come at once."""
    streams_per_token_max: int = 500
    """Maximum open event streams with one token and the cookies made with it, per process; twice as many in total."""

    keep_rows_days: float | None = None
    """Days after its last record that a run keeps its updates and logged values; None for forever."""
    keep_samples_days: float | None = None
    """Days after its last record that a run keeps its samples of gradients and activations; None for forever."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    judging: bool = True
    """Whether to diagnose runs as their records arrive. If False, they are diagnosed only on request."""

    drain_seconds: float = 0.0
    """How long after a stop signal the server keeps serving while `/readyz` reports that it is stopping."""

    idle_seconds_max: float | None = None
    """Stop the server after this long without a request or an open connection; None to keep it running."""

    alerts: Alerts | None = None
    """The targets of alerts, and how often to send them; None to send no alerts."""

    forward: tuple[str, ...] = ()
    """Destinations that runs are forwarded to, as "tensorboard:DIR" or "mlflow:URI"."""

    run_metrics: int = 0
    """Maximum number of running runs that `/metrics` shows by name."""

    log_format: LogFormat = "text"

    @property
    def server_directory(self) -> Path:
        return self.data_directory / "server"

    @property
    def address_file(self) -> Path:
        """The file in which a running server writes its own address."""
        return address_file(self.data_directory)

    @property
    def database_file(self) -> Path:
        """The SQLite file that is the database without a `database_url`."""
        return self.server_directory / "ampmon.db"
