"""Packs the cells of each parameter's gradients into pages, and reads parts of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ampmon_server.model.aggregates import parameters as of_parameters
from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.pyramid import Pyramid


VERSION = b"\x02"
"""The first byte of every page."""


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """The part of each cell to read: the parameters at ``places``, in that order, and some of the fields."""

    places: Sequence[int]
    fields: tuple[str, ...] = of_parameters.FIELDS


class _PackedPage(msgspec.Struct, array_like=True):
    """Cells of ``parameters`` parameters, with the ``fields`` that there were then, split into byte planes."""

    parameters: int
    fields: tuple[str, ...]
    planes: bytes


_page_decoder = msgspec.msgpack.Decoder(_PackedPage)


@dataclass(frozen=True, slots=True)
class ParameterPyramid(Pyramid):
    """Cells of ``parameters`` parameters. Each page names what it has: older ones may have fewer parameters or fields.

    With a ``part``, only that part is read, and nothing can be written.
    """

    parameters: int = 0
    part: ParameterPart | None = None

    def pack(self, cells: Cells) -> bytes:
        planes = cells.view(np.uint8).reshape(-1, 8).T.tobytes()
        page = _PackedPage(self.parameters, cells.dtype.names or (), planes)
        return VERSION + packing.compress(msgspec.msgpack.encode(page))

    def unpack(self, pages: Iterable[bytes]) -> Cells:
        parts = [self._unpacked(page) for page in pages]
        return joined(parts) if parts else np.zeros(0, self.dtype)

    def _unpacked(self, data: bytes) -> Cells:
        try:
            page = _page_decoder.decode(packing.decompress(packing.unversioned(data, VERSION)))
            planes = np.frombuffer(page.planes, np.uint8).reshape(8, -1)
            dtype = of_parameters.dtype_of(page.fields, page.parameters)
            cells: Cells = np.frombuffer(planes.T.tobytes(), dtype)
            part = self.part or ParameterPart(range(self.parameters))
            if dtype == self.dtype and part.places == range(self.parameters):
                return cells
            return of_parameters.taken(cells, part.places, part.fields)
        except (msgspec.DecodeError, Damaged, ValueError) as error:
            raise Damaged(f"a page of {self.table.name} is damaged: {error}") from error
