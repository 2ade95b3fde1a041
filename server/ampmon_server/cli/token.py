"""``ampmon token``: asks a running server for a way in."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

import msgspec
import urllib3

from ampmon.config import DEFAULT_URL, data_directory
from ampmon_server.settings import Settings


TIMEOUT_S = 5.0


def run(arguments: argparse.Namespace) -> int:
    """Print a new one-time link; 2, with one line that says what to do, where there is none to be had."""
    settings = Settings(data_directory=arguments.data_dir or data_directory())
    file = arguments.token_file or settings.data_directory / "token"
    url = (arguments.url or _written(settings) or DEFAULT_URL).rstrip("/")
    try:
        token = file.read_text().strip()
        print(_new_link(url, token))
    except OSError as error:
        problem = f"{file}: {error.strerror}; start `ampmon serve`, or name its --data-dir"
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        problem = (
            f"{url} gave no link ({type(error).__name__}): start `ampmon serve`, or name its --url"
        )
    else:
        return 0
    print(f"ampmon token: {problem}", file=sys.stderr)
    return 2


def _written(settings: Settings) -> str | None:
    with suppress(OSError):
        return settings.address_file.read_text().strip()
    return None


def _new_link(url: str, token: str) -> str:
    """Raises HTTPError where nobody answers, ValueError where the answer is no link."""
    with urllib3.PoolManager(retries=False, timeout=TIMEOUT_S) as http:
        answer = http.request(
            "POST",
            f"{url}/api/v1/login-links",
            headers={"Authorization": f"Bearer {token}"},
            redirect=False,
        )
    if answer.status != 201:
        raise ValueError(f"HTTP {answer.status}")
    return str(msgspec.json.decode(answer.data, type=dict[str, str | int])["url"])
