"""Redaction of a run's configuration: passwords and tokens are removed, and everything else stays."""

from __future__ import annotations

import random
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon import identity, wire
from ampmon.config import resolve
from ampmon.identity.redaction import REMOVED, redacted
from ampmon_server.http.auth.keys import Keys


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
    "AIza" + "Sy-_9" * 7,
    "sk_live_" + "a1B2" * 6,
    "rk_test_" + "a1B2" * 6,
    "pypi-AgEIcHlwaS5vcmc" + "a1_-" * 20,
    "npm_" + "a1B2" * 9,
    "SG." + "a1_-B" * 4 + "ab" + "." + "c3-_D" * 8 + "abc",
    "https://hooks.slack.com/services/T01234567/B01234567/" + "a1B2" * 6,
    "https://discord.com/api/webhooks/123456789012345678/" + "a1_-" * 17,
    "https://example.webhook.office.com/webhookb2/0f8fad5b-d9cb-469f-a165-70867728950e",
    "ASIA" + "A1" * 8,
    "ya29." + "a1_-" * 10,
    "dapi" + "0123456789abcdef" * 2,
]
PARTS = {
    "DefaultEndpointsProtocol=https;AccountName=ada;AccountKey="
    + "aB3+/" * 17
    + "a==;Suffix=core": "Suffix=core",
    "https://ada.blob.core.windows.net/data?sv=2024&sig=aB3%2F" + "x" * 40 + "%3D&sp=r": "&sp=r",
    "https://bucket.s3.amazonaws.com/x?X-Amz-Signature=" + "0f" * 32 + "&a=b": "&a=b",
    "train.py --password=hunter2 --epochs=3": "--epochs=3",
    "train.py --db-password 'hunter2' --epochs 3": "--epochs 3",
    "train.py --api-key hunter2 --epochs 3": "--epochs 3",
    "MYSQL_PWD=hunter2 train.py": "train.py",
    "WANDB_API_KEY=hunter2 train.py": "train.py",
    "Server=db;Uid=ada;Pwd=hunter2;Port=1": "Port=1",
    "curl -H 'Authorization: Basic YWRhOmh1bnRlcjI=' host": "host",
    '{"password": "hunter2", "lr": 1}': '"lr": 1',
}
"""Texts with a secret, each with a part that stays."""
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
    "uuid": "0f8fad5b-d9cb-469f-a165-70867728950e",
    "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "integrity": "sha512-" + "aB3+/" * 17 + "a==",
    "checkpoint": "npm_small-v2/SG.weights/pypi-mirror/sk_live/AIza.pt",
    "command": "train.py --max-tokens=512 --pass-through=yes --password-file=pw.txt --basic --key=loss --sig=3",
    "text": "Basic training of a model, and a password: it is asked for later",
    "schedule": "passes=3;keys=4;signal=up;design=flat",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "name": "ResNet50-MixedPrecision-Baseline2-Cifar10xx",
    "run": "llama3-8b-instruct-lr3e-4-bs32-seed1-run120",
    "environment": "PWD=/home/ada/run LANG=C",
    "s3": "s3://bucket/run-2026-11-23T10:00:00Z/sig/epoch=3-step=1000.ckpt",
    "nested": {"betas": [0.9, 0.95], "name": None},
}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_called_a_secret_is_removed(name: str) -> None:
    """A text under a secret's name is removed in any spelling and at any depth. Names and numbers stay."""
    deep = {"outer": [{name: SECRET}, {name: [SECRET]}, {name: {"x": "y", name: SECRET}}]}

    assert redacted(name, SECRET) == REMOVED
    assert SECRET not in repr(redacted("config", deep))
    assert name in repr(redacted("config", deep))
    assert redacted(name, 512) == 512


def test_all_that_is_in_a_secret_is_one() -> None:
    """All texts below a secret's name are removed."""
    clean = redacted("credentials", {"user": "ada", "how": [{"in": "full"}], "port": 5432})

    assert clean == {"user": REMOVED, "how": [{"in": REMOVED}], "port": 5432}


@pytest.mark.parametrize("value", BY_LOOKS)
def test_what_looks_like_a_token_is_removed(value: str) -> None:
    """A value that looks like a token is removed under any name, and inside a text."""
    assert redacted("note", value) == REMOVED
    assert value not in str(redacted("command", f"run --with {value} --more"))


@pytest.mark.parametrize(("text", "stays"), PARTS.items())
def test_a_secret_in_a_text_is_removed_and_the_rest_stays(text: str, stays: str) -> None:
    """Flags, variables, connection strings, headers and signed URLs lose only the secret's value."""
    clean = str(redacted("note", text))

    assert REMOVED in clean
    assert stays in clean
    assert not any(each in clean for each in ("hunter2", "aB3", "0f0f", "YWRh"))
    assert redacted("note", clean) == clean


def test_the_value_of_a_flag_in_a_list_is_removed() -> None:
    """A command line kept as a list loses only the word after a secret's flag."""
    line = [
        "train.py",
        "--db-password",
        "hunter2",
        "--lr",
        "3",
        "--api-key",
        "--epochs",
        "--password-file",
        "pw",
    ]

    assert redacted("argv", line) == [*line[:2], REMOVED, *line[3:]]


def test_our_own_tokens_are_removed_under_any_name() -> None:
    """ampmon's tokens, login links and sessions are removed, and at least 99 % of tokens without a prefix."""
    chance = random.Random(20)
    codes = [urlsafe_b64encode(chance.randbytes(32)).decode().rstrip("=") for _ in range(1000)]
    plain = Keys(codes[0])
    known = ("ampmon_" + codes[1], plain.sign("session"), plain.sign("cookie", "a-token"))
    for secret in (*known, f"https://ampmon.example/login?code={codes[2]}"):
        clean = str(redacted("server", f"reports to {secret} each second"))
        assert secret not in clean
        assert clean.startswith("reports to ")
        assert clean.endswith(" each second")
    assert sum(redacted("server", code) == REMOVED for code in codes) >= 990


def test_a_url_loses_its_password() -> None:
    """A URL loses its user and password and keeps host and path."""
    clean = redacted(
        "database", "postgresql://ada:s3cr3t@db.example/ampmon and https://t0k3n@git.example/x"
    )

    assert clean == f"postgresql://{REMOVED}@db.example/ampmon and https://{REMOVED}@git.example/x"


def test_what_is_harmless_stays() -> None:
    """Words that merely contain a secret's name, numbers, and a tokenizer's tokens stay."""
    assert redacted("config", HARMLESS) == HARMLESS


@given(PLAIN)
def test_nothing_is_raised_and_nothing_else_changes(value: object) -> None:
    """Redacting twice changes nothing, and plain values without a secret stay as they are."""
    once = redacted("config", value)
    assert redacted("config", once) == once
    if "pass" not in repr(value).lower() and REMOVED not in repr(once):
        assert once == value


def test_what_is_nearly_a_secret_is_read_as_fast_as_any_text() -> None:
    """256 KiB of a pattern's beginnings are read in linear time; in quadratic time that would take hours."""
    pieces = ("eyJ", "-----BEGIN ", "://a", "sk-", "Bearer ", "ampmon_", "://" + "a" * 255)
    pieces += (
        "password",
        "--a-",
        "a_",
        "pwd=",
        "SG.a",
        "sig=",
        "a1B2_",
        "Basic ",
        "https://hooks.",
    )
    for piece in pieces:
        redacted("note", piece * (2**18 // len(piece)))


def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    """The header that is written to disk has the configuration without its secrets."""
    config = {"lr": 0.1, "password": SECRET, "hub": {"token": SECRET}, "args": ["hf_" + "a1B2" * 9]}
    options = resolve(dir=tmp_path, config=config, environment={})
    ids = {"run_id": identity.uuid7(), "attempt_id": identity.uuid7()}
    written = wire.encode(identity.new_attempt(options, **ids, started=1, rank=0, world_size=1))

    assert SECRET.encode() not in written
    assert b"hf_" not in written
    assert b"password" in written
    assert b"lr" in written
