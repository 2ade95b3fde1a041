"""The demo's data: the source text of Python's own standard library, as numbers. Knows nothing of training."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


# What Python source is written in; everything else, such as an author's umlaut, is left out.
ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


@dataclass(frozen=True, slots=True)
class Text:
    """A text as one long row of indices into ALPHABET, uint8, on the device that trains."""

    characters: Tensor
    files: int

    def batch(self, size: int, context: int) -> tuple[Tensor, Tensor]:
        """``size`` random windows, int64 [size, context], and the characters that follow each, likewise."""
        starts = torch.randint(len(self.characters) - context, (size, 1))
        places = (starts + torch.arange(context + 1)).to(self.characters.device)
        windows = self.characters[places].long()
        return windows[:, :-1], windows[:, 1:]


def load(device: str, library: Path | None = None) -> Text:
    """The modules of the standard library, one after another. Raises FileNotFoundError where they have no source."""
    library = library or Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"))
    if not files:
        raise FileNotFoundError(f"no Python source in {library}: this Python came without it")
    source = b"\n".join(file.read_bytes() for file in files)
    return Text(_encode(source).to(device), len(files))


def _encode(source: bytes) -> Tensor:
    known = ALPHABET.encode()
    numbers = bytes.maketrans(known, bytes(range(len(known))))
    unknown = bytes(set(range(256)) - set(known))
    return torch.frombuffer(bytearray(source.translate(numbers, unknown)), dtype=torch.uint8)
