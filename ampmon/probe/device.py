"""Measures gradients on devices that work on their own time: by Triton kernels where they run, else in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch

from ampmon.probe import eager
from ampmon.probe.gpu import kernels
from ampmon.probe.gpu.loading import NotReady
from ampmon.probe.gpu.table import Unsupported
from ampmon.probe.ring import Readback


Asking: TypeAlias = Callable[[torch.Tensor], Readback | None]


class DeviceProbe:
    """Enqueues measurements and their way to the host; waits for nothing. Keeps no gradient alive.

    While kernels are being compiled nothing is measured: plain torch's first use of its operators would stop the
    training for a quarter of a second. Where one cannot be compiled or launched plain torch measures from then on,
    which is reported once; where only memory was short, the next call tries the kernels again.
    """

    def __init__(self, report: Callable[[str, Exception], None]) -> None:
        self._report = report
        self._kernels = kernels.Cache()
        self._usable = True
        self._taken: dict[torch.device, bool] = {}
        """What `takes` has answered: it is asked at every update."""

    def takes(self, device: torch.device) -> bool:
        """Whether gradients on this device are measured here: all that are not on a CPU."""
        taken = self._taken.get(device)
        if taken is None:
            taken = self._taken[device] = device.type != "cpu" or self.fuses(device)
        return taken

    def fuses(self, device: torch.device) -> bool:
        """Whether kernels run on this device, which measure gradients while they unscale them."""
        return self._usable and kernels.supported(device)

    def statistics(
        self, gradients: Sequence[torch.Tensor], ready: Callable[[], None] = kernels.nothing
    ) -> torch.Tensor:
        """Statistics of n gradients of one device and dtype as `eager.launch` packs them, int64 [n, 71], there.

        Here and in `unscale`, ``ready`` is called when a kernel is prepared, before it is enqueued. Raises `NotReady`.
        """
        if self.fuses(gradients[0].device):
            try:
                return self._kernels.statistics(gradients, ready)
            except NotReady:
                raise
            except Exception as error:
                self._failed(error)
        return eager.launch(gradients)

    def unscale(
        self,
        gradients: Sequence[torch.Tensor],
        found_inf: torch.Tensor,
        inv_scale: torch.Tensor,
        ready: Callable[[], None],
    ) -> torch.Tensor | None:
        """Unscale n fp32 or fp16 gradients of one device in place and measure them as they were.

        The gradients end as torch leaves them, except NaN payloads. ``found_inf`` and ``inv_scale`` are fp32 with one
        element, on that device. The statistics stay on the device, packed as int64 [n, 71]; None where it could not be
        done, and the gradients are untouched then.
        """
        try:
            return self._kernels.unscale(gradients, found_inf, inv_scale, ready)
        except Exception as error:
            self._failed(error)
            return None

    def culprits(self, gradients: Sequence[torch.Tensor]) -> Asking | None:
        """What enqueues a count of inf and NaN elements of n gradients, int64 [n, 2], if found_inf there is not zero.

        It can be called again on this stream while no gradient moves. None where there is no kernel for it, which it
        gives too. Both raise `NotReady`.
        """
        if self.fuses(gradients[0].device):
            try:
                return partial(self._asked, self._kernels.asking(gradients))
            except NotReady:
                raise
            except Exception as error:
                self._failed(error)
        return None

    def _asked(
        self, count: Callable[[torch.Tensor], torch.Tensor], found_inf: torch.Tensor
    ) -> Readback | None:
        try:
            return Readback(count(found_inf))
        except NotReady:
            raise
        except Exception as error:
            self._failed(error)
            return None

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Unsupported):
            return
        self._report("the Triton kernels", error)
        if not _out_of_memory(error):
            self._usable = False
            self._taken.clear()


def _out_of_memory(error: Exception) -> bool:
    """Whether the device was out of memory. The text says so: torch, CUDA and Triton each raise their own class."""
    return "out of memory" in str(error)
