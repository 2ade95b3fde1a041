"""The demo's training data: the source text of Python's standard library, as numbers."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


# Printable ASCII and newline. Other characters of the source, such as umlauts in names, are dropped.
ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))


@dataclass(frozen=True, slots=True)
class Text:
    """A text as one row of uint8 indices into ALPHABET, on the training device."""

    characters: Tensor

    def batch(self, size: int, context: int) -> tuple[Tensor, Tensor]:
        """Return ``size`` random windows and the characters that follow each position, both int64 [size, context]."""
        starts = torch.randint(len(self.characters) - context, (size, 1))
        places = (starts + torch.arange(context + 1)).to(self.characters.device)
        windows = self.characters[places].long()
        return windows[:, :-1], windows[:, 1:]


def load(device: str, library: Path | None = None) -> Text:
    """Return the modules of the standard library, concatenated. Raises FileNotFoundError if their source is missing."""
    library = library or Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"))
    if not files:
        raise FileNotFoundError(
            f"no Python source in {library}: this Python was installed without it"
        )
    source = b"\n".join(file.read_bytes() for file in files)
    return Text(_encode(source).to(device))


def _encode(source: bytes) -> Tensor:
    known = ALPHABET.encode()
    numbers = bytes.maketrans(known, bytes(range(len(known))))
    unknown = bytes(set(range(256)) - set(known))
    return torch.frombuffer(bytearray(source.translate(numbers, unknown)), dtype=torch.uint8)
