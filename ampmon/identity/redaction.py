"""Removes passwords and tokens from a run's configuration before it is written, by name and by format."""

from __future__ import annotations

import base64
import binascii
import re


REMOVED = "[removed]"

# A whole word of the name: `api_key` and `apiKey`, but not `keyboard` or `passes`.
_SECRET = re.compile(
    r"(?:^|[^a-z])(?:pass(?:word|wd|phrase|code)?|pwd|secrets?|api_?keys?|(?:access|secret|private|signing)_?keys?"
    r"|credentials?|authorization|connection_?string)(?![a-z])"
)
# A tokenizer's `eos_token` matches too, so these values must also be long and without a space.
_PERHAPS = re.compile(r"(?:^|[^a-z])(?:tokens?|auth|cookies?|dsn|bearer|webhook)(?![a-z])")
_LONG = re.compile(r"[!-~]{16,}")
_BETWEEN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LOOKS = re.compile(
    r"ampmon_[\w-]{20,}"
    r"|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}|\bsk-[\w-]{16,}|\bAKIA[0-9A-Z]{16}\b|\bxox[abeprs]-[\w-]{10,}"
    r"|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^\0]*"
    r"|(?<=://)[^\s/@]{1,256}(?=@)"
    r"|(?<=Bearer )[!-~]{8,}"
    # Prefixes and lengths as gitleaks publishes them (github.com/gitleaks/gitleaks, config/gitleaks.toml).
    r"|\bASIA[0-9A-Z]{16}\b|\bAIza[\w-]{35}|\bya29\.[\w-]{30,}|\b[rs]k_(?:live|test|prod)_[0-9A-Za-z]{10,}"
    r"|\bpypi-AgEI[\w-]{50,}|\bnpm_[0-9A-Za-z]{36}\b|\bSG\.[\w-]{22}\.[\w-]{43}|\bdapi[0-9a-f]{32}\b"
    r"|https://hooks\.slack\.com/(?:services|workflows|triggers)/[\w/-]{20,}"
    r"|https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/\d+/[\w-]{20,}"
    r"|https://[\w.-]{1,64}\.webhook\.office\.com/webhookb2/[\w@/-]{20,}",
    re.ASCII,
)
_CALLED = (
    r"(?:pass(?:word|wd|phrase|code)|pwd(?![\"']?[=:][\"']?[/~.])|secrets?|api[_-]?keys?|credentials?|connection[_-]?string"
    r"|(?:account|sharedaccess|access|secret|private|signing)[_-]?keys?)"
)
# `--db-password x`, `MYSQL_PWD=x`, `AccountKey=x`, `"password": "x"`, and URL signatures.
_GIVEN = re.compile(
    rf"(--(?:[a-z0-9]{{1,32}}[_-]){{0,8}}{_CALLED}[ ]+(?![-]))(?:\"[^\"]+\"|'[^']+'|[^\s\"']+)"
    rf"|((?<![a-z]){_CALLED}=[\"']?)[^\s\"'&;,]+"
    rf"|((?<![a-z]){_CALLED}[\"']:[ ]?[\"'])[^\"']+"
    r"|([?&](?:sig|(?:x-(?:amz|goog)-)?(?:signature|security-token)|access_token|token|code)=)[^\s\"'&#]{16,}",
    re.IGNORECASE | re.ASCII,
)
_FLAG = re.compile(rf"--?(?:[a-z0-9]{{1,32}}[_-]){{0,8}}{_CALLED}", re.IGNORECASE | re.ASCII)
_BASIC = re.compile(r"(?<=\bBasic )[A-Za-z0-9+/]{6,}={0,2}", re.ASCII)
# 32 random bytes, as in ampmon's tokens and one-time codes, and a session with its signature.
_RANDOM = re.compile(r"(?<![\w+/=.-])[\w-]{43}(?![\w+/=-])", re.ASCII)
_SESSION = re.compile(
    r"\b\d{10}(?:-[0-9a-f]{8,64})?\.(?:[\w-]{1,64}\.){0,2}[0-9a-f]{64}\b", re.ASCII
)
_CLASSES = re.compile(r"[a-z]+|[A-Z]+|[0-9]+|[_-]")
_WORD = re.compile(r"[a-z]{4,}")


def redacted(name: str, value: object) -> object:
    """Return a value without its secrets. ``name`` is its key. The value must be plain data, as on the wire."""
    if isinstance(value, str):
        return REMOVED if _is_secret(name, value) else _without_secrets(value)
    if isinstance(value, bytes):
        return REMOVED.encode() if _is_secret(name, "x" * len(value)) else value
    if isinstance(value, dict):
        above = "secret " if _SECRET.search(_words(name)) else ""  # then everything inside is
        return {key: redacted(f"{above}{key}", each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [
            REMOVED if _follows_flag(value, place) else redacted(name, each)
            for place, each in enumerate(value)
        ]
    return value


def _without_secrets(text: str) -> str:
    text = _LOOKS.sub(REMOVED, _SESSION.sub(REMOVED, text))
    text = _RANDOM.sub(lambda found: REMOVED if _is_random(found[0]) else found[0], text)
    text = _BASIC.sub(lambda found: REMOVED if _is_login(found[0]) else found[0], text)
    return _GIVEN.sub(lambda found: f"{next(filter(None, found.groups()))}{REMOVED}", text)


def _is_random(text: str) -> bool:
    """Whether case and digits change as often as in random text, with few words. Misses 3 in 1000 tokens."""
    words = sum(map(len, _WORD.findall(text)))
    return len(_CLASSES.findall(text)) >= 17 and sum(map(text.count, "_-")) <= 5 and words <= 18


def _is_login(text: str) -> bool:
    """Whether it is the base64 of a user, a colon and a password."""
    try:
        return b":" in base64.b64decode(text, validate=True)
    except binascii.Error:
        return False


def _follows_flag(values: list[object] | tuple[object, ...], place: int) -> bool:
    """Whether a text is the value of the command-line flag before it, as in `["--password", "x"]`."""
    value, before = values[place], values[place - 1] if place else None
    if not (isinstance(value, str) and isinstance(before, str)):
        return False
    return not value.startswith("-") and _FLAG.fullmatch(before) is not None


def _words(name: str) -> str:
    return _BETWEEN.sub("_", name).lower()


def _is_secret(name: str, value: str) -> bool:
    words = _words(name)
    if _SECRET.search(words):
        return value != ""
    return _PERHAPS.search(words) is not None and _LONG.fullmatch(value) is not None
