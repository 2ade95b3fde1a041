"""Reads the file of an offline W&B run."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record


BLOCK, HEADER, FILE_HEADER = 32768, 7, 7
"""The file is a LevelDB log of blocks. A piece is a whole record (1), or its first (2), middle (3) or last (4) part."""


def records(path: Path) -> Iterator[Record]:
    data, at, whole = path.read_bytes(), FILE_HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if at + HEADER + size > len(data):
            return
        whole += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in {1, 4}:
            yield Record.FromString(whole)
            whole = b""


def print_rows(folder: str) -> None:
    """Print each row of the folder's one run as JSON, once W&B has written the whole file."""
    (file,) = Path(folder).glob("wandb/offline-run-*/*.wandb")
    found: list[Record] = []
    while not any(each.WhichOneof("record_type") == "exit" for each in found):
        found = list(records(file))
    for record in found:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            print(json.dumps(row))
