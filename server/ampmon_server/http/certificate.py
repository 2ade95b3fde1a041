"""The server's TLS certificate: checks it before use, reloads it when its file changes, and warns before it expires."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ampmon.errors import ConfigurationError
from ampmon_server.settings import Settings


SOON_S = 14 * 24 * 3600.0
"""How long before its expiry the log warns about a certificate."""
WARNED_EVERY_S = 24 * 3600.0
LOOK_EVERY_S = 3600.0
_FLIGHTS = 4
"""An upper bound on the turns of both sides in a TLS handshake."""

_log = logging.getLogger(__name__)


class Certificate:
    """The certificate in the file ``cert``, with its key in ``key``, both PEM. Raises ConfigurationError.

    Connections use ``context``; a reload updates it in place.
    """

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self._warned_s = -WARNED_EVERY_S
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ends_s = 0.0
        """Its expiry, in seconds since the epoch."""
        self.names: tuple[str, ...] = ()
        """The names and addresses it is issued for, as in a Host header, without wildcards."""
        self._load()

    @classmethod
    def of(cls, settings: Settings) -> Certificate | None:
        """Load the certificate that the settings name; None if they name none. Raises ConfigurationError."""
        if settings.tls_cert is None or settings.tls_key is None:
            return None
        return cls(settings.tls_cert, settings.tls_key)

    def look(self, now_s: float | None = None) -> None:
        """Reload the files if they changed, and warn once a day if expiry is near.

        If the new files are bad, log that and keep the loaded certificate.
        """
        now_s = time.time() if now_s is None else now_s
        if self._stamp() != self._loaded:
            try:
                self._load()
                _log.info("Reloaded the certificate %s: it expires %s", self._cert, self._end)
            except ConfigurationError as problem:
                _log.error(
                    "Cannot reload the certificate, so the previous one stays in use: %s", problem
                )
        if self.ends_s - now_s < SOON_S and now_s - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = now_s
            _log.warning(
                "The certificate %s expires %s: replace the file; the server reloads it within an hour",
                self._cert,
                self._end,
            )

    async def keep(self) -> None:
        """Look once an hour, forever."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    @property
    def _end(self) -> str:
        return datetime.fromtimestamp(self.ends_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")

    def _stamp(self) -> tuple[int, ...]:
        try:
            return tuple(each.stat().st_mtime_ns for each in (self._cert, self._key))
        except OSError:
            return ()

    def _load(self) -> None:
        # Before the files are read, so that a change meanwhile is loaded at the next look.
        self._loaded = self._stamp()
        for flag, path in (("--tls-cert", self._cert), ("--tls-key", self._key)):
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigurationError(
                    f"{flag} {path} cannot be read ({error.strerror})"
                ) from None
        # Load into a trial context first: a mismatched pair would leave the live context half changed.
        trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            trial.load_cert_chain(self._cert, self._key, self._no_passphrase)
            certificate = _shown(trial, self._cert)
        except ssl.SSLCertVerificationError as error:
            raise ConfigurationError(
                f"--tls-cert {self._cert}: every client would reject it ({error.verify_message}); renew it"
            ) from None
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"--tls-cert {self._cert} and --tls-key {self._key} are not a certificate and its key in PEM format "
                f"({(error.reason or 'not PEM').lower().replace('_', ' ')})"
            ) from None
        self.context.load_cert_chain(self._cert, self._key)
        self.ends_s = float(ssl.cert_time_to_seconds(certificate["notAfter"]))
        self.names = tuple(_names(certificate))

    def _no_passphrase(self) -> str:
        raise ConfigurationError(  # else OpenSSL would ask for it at the terminal, or wait forever
            f"--tls-key {self._key} has a passphrase: give the server a key without one, readable by its user only"
        )


def _shown(server: ssl.SSLContext, cert: Path) -> dict[str, Any]:
    """The certificate as a client that trusts only it sees it. Raises SSLCertVerificationError as that client would.

    Runs a handshake in memory: the standard library has no other way to parse a certificate.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    # So that it trusts the certificate itself, whoever issued it.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cert)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours, theirs = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for _ in range(_FLIGHTS):
        for each in (ours, theirs):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours.getpeercert() or {}


def _names(certificate: dict[str, Any]) -> list[str]:
    names = [(kind, str(value)) for kind, value in certificate.get("subjectAltName", ())]
    return [
        f"[{value.lower()}]" if ":" in value else value.lower()
        for kind, value in names
        if kind in {"DNS", "IP Address"} and "*" not in value
    ]
