"""Takes passwords and tokens out of a run's configuration before it is written anywhere: by name, and by looks."""

from __future__ import annotations

import re


REMOVED = "[removed]"

# A whole word of the name: `api_key` and `apiKey`, and neither `keyboard` nor `passes`.
_SECRET = re.compile(
    r"(?:^|[^a-z])(?:pass(?:word|wd|phrase|code)?|pwd|secrets?|api_?keys?|(?:access|secret|private|signing)_?keys?"
    r"|credentials?|authorization|connection_?string)(?![a-z])"
)
# A tokenizer's `eos_token` is one as well: these have to be long, and without a space.
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
    r"|(?<=Bearer )[!-~]{8,}",
    re.ASCII,
)


def redacted(name: str, value: object) -> object:
    """The value of this name, plain data as a wire takes it, without what nobody is to read."""
    if isinstance(value, str):
        return REMOVED if _is_secret(name, value) else _LOOKS.sub(REMOVED, value)
    if isinstance(value, bytes):
        return REMOVED.encode() if _is_secret(name, "x" * len(value)) else value
    if isinstance(value, dict):
        above = "secret " if _SECRET.search(_words(name)) else ""  # then all that is in it
        return {key: redacted(f"{above}{key}", each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(name, each) for each in value]
    return value


def _words(name: str) -> str:
    return _BETWEEN.sub("_", name).lower()


def _is_secret(name: str, value: str) -> bool:
    words = _words(name)
    if _SECRET.search(words):
        return value != ""
    return _PERHAPS.search(words) is not None and _LONG.fullmatch(value) is not None
