"""What is given as a run's configuration leaves no password and no token behind, and is otherwise what was given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon import identity, wire
from ampmon.config import resolve
from ampmon.identity.redaction import REMOVED, redacted


SECRET = "s3cr3t-value-of-somebody"
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)

BY_NAME = [
    *(
        "password",
        "DB_PASSWORD",
        "dbPassword",
        "passwd",
        "pwd",
        "secret",
        "client_secret",
        "clientSecret",
    ),
    *("api_key", "apiKey", "OPENAI_API_KEY", "aws_secret_access_key", "private_key", "credentials"),
    *("token", "hub_token", "authToken", "Authorization", "cookie", "sentry_dsn", "webhook"),
]
BY_LOOKS = [
    "ampmon_" + "x" * 43,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 9,
    "glpat-" + "a" * 20,
    "hf_" + "a1B2" * 9,
    "sk-proj-" + "a" * 40,
    "AKIA" + "A1" * 8,
    "xoxb-1234567890-abc",
    "eyJhbGciOiJI.eyJzdWIiOiIx.abc_-1",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]
HARMLESS = {
    "lr": 1e-3,
    "max_tokens": 512,
    "tokenizer": "a-tokenizer-with-a-long-name",
    "eos_token": "<|endoftext|>",
    "pass_through": True,
    "passes": "three-of-them-and-more",
    "bypass": "a-value-of-some-length",
    "key": "a-value-of-some-length",
    "keys_per_head": 64,
    "author": "ada-lovelace-of-london",
    "authors": ["ada-lovelace-of-london"],
    "secretary": "ada-lovelace-of-london",
    "compass": "north-north-west-and-on",
    "data": "s3://bucket/path@2x/train.parquet",
    "url": "https://hub.example/data?page=2",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "note": "the task-sk- of risk-averse people",
    "nested": {"betas": [0.9, 0.95], "name": None},
}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_called_a_secret_is_removed(name: str) -> None:
    """Whatever the case and the words around it, and however deep: the name stays and the value does not."""
    deep = {"outer": [{name: SECRET}, {name: [SECRET]}, {name: {"x": "y", name: SECRET}}]}

    assert redacted(name, SECRET) == REMOVED
    assert SECRET not in repr(redacted("config", deep))
    assert name in repr(redacted("config", deep))
    assert redacted(name, 512) == 512


def test_all_that_is_in_a_secret_is_one() -> None:
    """Below a name that is a secret's, no text is left."""
    told = redacted("credentials", {"user": "ada", "how": [{"in": "full"}], "port": 5432})

    assert told == {"user": REMOVED, "how": [{"in": REMOVED}], "port": 5432}


@pytest.mark.parametrize("value", BY_LOOKS)
def test_what_looks_like_a_token_is_removed(value: str) -> None:
    """Whatever its name, and in the middle of a text."""
    assert redacted("note", value) == REMOVED
    assert value not in str(redacted("command", f"run --with {value} --more"))


def test_a_url_loses_its_password() -> None:
    """Of an address with a user and a password host and path are left."""
    told = redacted(
        "database", "postgresql://ada:s3cr3t@db.example/ampmon and https://t0k3n@git.example/x"
    )

    assert told == f"postgresql://{REMOVED}@db.example/ampmon and https://{REMOVED}@git.example/x"


def test_what_is_harmless_stays() -> None:
    """Words that merely contain such a name, numbers, and what a tokenizer calls a token are left alone."""
    assert redacted("config", HARMLESS) == HARMLESS


@given(PLAIN)
def test_nothing_is_raised_and_nothing_else_changes(value: object) -> None:
    """Of any plain value the shape stays, and nothing is found twice."""
    once = redacted("config", value)
    assert redacted("config", once) == once
    if "pass" not in repr(value).lower() and REMOVED not in repr(once):
        assert once == value


def test_what_is_nearly_a_secret_is_read_as_fast_as_any_text() -> None:
    """A megabyte of a pattern's beginnings is read to its end: in quadratic time that would take hours."""
    for piece in ("eyJ", "-----BEGIN ", "://a", "sk-", "Bearer ", "ampmon_", "://" + "a" * 255):
        redacted("note", piece * (2**20 // len(piece)))


def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    """The header that a training process writes has what it was configured with, and no secret of it."""
    config = {"lr": 0.1, "password": SECRET, "hub": {"token": SECRET}, "args": ["hf_" + "a1B2" * 9]}
    options = resolve(dir=tmp_path, config=config, environment={})
    written = wire.encode(identity.new_attempt(options, run_id=identity.uuid7()))

    assert SECRET.encode() not in written
    assert b"hf_" not in written
    assert b"password" in written
    assert b"lr" in written
