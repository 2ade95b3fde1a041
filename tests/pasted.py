"""Pasted error texts from pasted.toml: each with the anchor of its entry, or without one."""

from __future__ import annotations

from pathlib import Path

import msgspec


_TEXTS = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())["text"]
PASTED = {each["name"]: (each["pasted"], each["entry"]) for each in _TEXTS if "entry" in each}
UNRELATED = {each["name"]: each["pasted"] for each in _TEXTS if "entry" not in each}
THREADS = {each["name"]: each["finding"] for each in _TEXTS if "finding" in each}
"""The rule of the finding that answers a public thread, by the name of the thread."""
