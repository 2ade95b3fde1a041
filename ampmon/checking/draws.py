"""Makes dropout draw the same in every precision, so passes in two precisions can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


_DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
}
_ATTENTION = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}
"""The position of ``dropout_p`` among the arguments of each function."""


class SameDraws(TorchFunctionMode):
    """A mode in which dropout is computed in fp32, and attention has no dropout.

    On a GPU, the elements that dropout zeroes depend on the dtype even if the generator's state is the same: a kernel
    draws for as many elements at a time as it loads. Attention kernels differ more, so they run without dropout.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS and args and args[0].is_floating_point():
            # Not in place, even if requested: only the returned value counts.
            return func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        if (place := _ATTENTION.get(func)) is not None:
            if place < len(args):
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)
