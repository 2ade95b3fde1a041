"""Warns about an fp16 loss that no watched scaler scales."""

from __future__ import annotations

from typing import Any

import torch

from ampmon.lints.precision import computes_in
from ampmon.lints.reporter import LintReporter, Warn
from ampmon.training.call import Call
from ampmon.training.series import Stream


_NO_CALL = Call("ampmon.client.scaler.GradScaler", {})


def say_unscaled(stream: Stream, warn: Warn, loss: Any, why: str, call: Call | None) -> bool:
    """Return whether the loss is computed in fp16. If so, report it: the fix is ``call``, with the scaler enabled."""
    if computes_in(loss) is not torch.float16:
        return False
    first = loss[0] if isinstance(loss, (list, tuple)) else loss
    note = "" if call else "or ampmon.watch(scaler), if you have one"
    call = call or _NO_CALL
    wanted = {"device": f'"{first.device.type}"'}
    if "enabled" in call.arguments:
        wanted["enabled"] = "True"
    fix = call.code(wanted, note)
    LintReporter(stream, warn).say("fp16_without_scaler", scaler=why, call=fix)
    return True
