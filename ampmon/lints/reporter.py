"""Reports each lint once, as an event of its stream and, unless it is a notice, as a warning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ampmon.training.series import Stream
from ampmon.wire import Severity


@dataclass(frozen=True, slots=True)
class Lint:
    """Texts with placeholders for the values of a report. ``stop``: the run cannot recover."""

    severity: Severity
    title: str
    explanation: str
    fix: str
    stop: bool = False


LINTS: dict[str, Lint] = {
    "fused_sgd": Lint(
        "critical",
        "The first step of {optimizer}, which is fused and has momentum, overflowed",
        "Fused SGD creates its momentum buffer in its first step, from uninitialized memory. That step was skipped, "
        "so nothing was written into the buffer, and the next step uses its leftovers as momentum. They go into the "
        "weights, and no overflow is seen. Start the training again, and use no checkpoint of this run.",
        "optimizer = torch.optim.SGD(parameters, lr, momentum=..., fused=False)",
        stop=True,
    ),
    "sharded_fused": Lint(
        "warning",
        "{optimizer} is fused, so ranks do not agree on which steps to skip",
        "When ShardedGradScaler unscales, it checks all ranks for an overflow. A fused optimizer unscales within its "
        "own step, without that check: a rank whose shard overflowed skips alone, and the shards of the model drift "
        "apart.",
        "optimizer = {constructor}(model.parameters(), lr=..., fused=False)",
    ),
    "scaler_under_bf16": Lint(
        "warning",
        "Gradients are computed in bfloat16, with a scaler that is enabled",
        "bfloat16 has the exponent range of fp32, so a loss scale has no underflow to prevent. The scaler still "
        "unscales and checks all gradients, and skips steps.",
        "scaler = ampmon.GradScaler(enabled=False)  # for bfloat16",
    ),
    "fp16_without_scaler": Lint(
        "warning",
        "The loss is computed in fp16, and {scaler}",
        "Gradients below 2⁻²⁴ silently become zero in fp16. A scaler multiplies the loss to keep them above that, "
        "and divides the gradients again before the step.",
        "{call}",
    ),
    "fp16_parameters": Lint(
        "critical",
        "{count} parameters are fp16",
        "An fp16 weight has 11 significant bits: an update of less than 1/2048 of it is lost. torch refuses to "
        "unscale fp16 gradients (ValueError), unless the optimizer is fused. Keep the weights in fp32, and let "
        "autocast run suitable operations in fp16. Cast the weights before you create the optimizer: Adagrad creates "
        "its state then, in the dtype of the weights.",
        'model.float()  # before you create the optimizer\nwith torch.autocast("cuda", torch.float16):\n    loss = ...',
    ),
    "unscaled_loss": Lint(
        "critical",
        "A backward pass starts from {loss}",
        "{why}",
        "scaler.scale(loss).backward()  # {hint}",
    ),
    "scaled_twice": Lint(
        "critical",
        "`scale()` is called with a loss that is scaled already",
        "The gradients are multiplied by the scale twice and divided by it once. Every step is too large by the factor "
        "of the scale, and gradients overflow early.",
        "scaler.scale(loss).backward()  # scale() once for each loss",
    ),
    "backward_twice": Lint(
        "warning",
        "A scaled loss is passed backward twice",
        "Each backward pass adds the same gradients again. The step is as large as with twice the loss, and gradients "
        "overflow at half the scale.",
        "scaler.scale(loss).backward()  # once for each loss",
    ),
    "never_backward": Lint(
        "warning",
        "A loss is scaled and never passed backward",
        "In each update, `scale()` returned a loss, but no backward pass started from it. The model learns nothing "
        "from it.",
        "scaler.scale(loss).backward()  # each loss that you scale",
    ),
    "stepped_past": Lint(
        "critical",
        "{optimizer} steps twice in each update",
        "After `scaler.step(optimizer)`, the loop calls `optimizer.step()` as well. The second step uses the same "
        "gradients again. If they overflowed, `scaler.step` skips its step and this one writes inf or NaN into the "
        "weights.",
        "scaler.step(optimizer)  # and no optimizer.step()\nscaler.update()",
    ),
    "unstepped": Lint(
        "critical",
        "{optimizer} {did} in {count} updates, although its gradients were unscaled",
        "`unscale_` and `update` were called, and `scaler.step` was not. If the loop steps the optimizer itself, it "
        "must check for inf and NaN, or they reach the weights. If it does not, the model learns nothing.",
        "scaler.unscale_(optimizer)\nscaler.step(optimizer)\nscaler.update()",
    ),
    "unscaled_twice": Lint(
        "critical",
        "Gradients are divided by the scale twice",
        "{why}, and `step()` divides them again, so they become far too small.",
        "scaler.unscale_(optimizer)  # instead of a division by the scale\nscaler.step(optimizer)\n"
        "scaler.update()  # once, after the step",
    ),
    "cleared_before_step": Lint(
        "critical",
        "Gradients are cleared between `backward()` and `step()`",
        "The optimizer steps with gradients that are zero or missing, so this model learns nothing from its loss.",
        "optimizer.zero_grad()  # before backward(), or after step()\nscaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\nscaler.update()",
    ),
    "cleared_within_batch": Lint(
        "warning",
        "Gradients are cleared between the backward passes of one step",
        "Only the passes after the last `zero_grad()` count. Unless the loop reads the gradients of the others, these "
        "are computed for nothing.",
        "optimizer.zero_grad()  # once, before the first backward pass\nfor micro_batch in batch:\n"
        "    scaler.scale(loss_of(micro_batch) / len(batch)).backward()\nscaler.step(optimizer)\nscaler.update()",
    ),
    "clip_before_unscale": Lint(
        "warning",
        "Gradients are clipped while they are still scaled: their {measure} is {value:.4g} each time",
        "The threshold is compared with gradients that are {scale:.6g} times too large, so every update is clipped to "
        "it. After unscaling, the step is too small by the same factor.",
        "scaler.unscale_(optimizer)  # before clipping\ntorch.nn.utils.{clip}\nscaler.step(optimizer)",
    ),
    "unscale_in_accumulation": Lint(
        "warning",
        "{title}",
        "{why}",
        "# once, after the last backward pass of the batch\nscaler.unscale_(optimizer)\nscaler.step(optimizer)",
    ),
    "scale_within_batch": Lint(
        "warning",
        "`update()` was called between the backward passes of one step",
        "Gradients computed at different scales were added up, and `step` divides the sum by the last scale. The "
        "earlier gradients get too much or too little weight.",
        "# once, after the step\nscaler.step(optimizer)\nscaler.update()",
    ),
    "backward_under_autocast": Lint(
        "warning",
        "The backward pass runs under autocast",
        "Operations of the backward pass already use the dtypes of the forward pass. Under autocast they may be cast "
        "again, to fp16 where they need the range of fp32; torch advises against it.",
        'with torch.autocast("cuda", torch.float16):\n    loss = ...\nscaler.scale(loss).backward()  # outside',
    ),
    "scaler_made_anew": Lint(
        "warning",
        "A new scaler is created again and again: the third steps {optimizer}",
        "Each new scaler loses the scale and the growth tracker of the last one: it starts again at the initial "
        "scale, and skips steps again. If it lasts for fewer updates than `growth_interval`, its scale never grows.",
        "scaler = ampmon.GradScaler(device)  # once, before the first epoch",
    ),
    "no_update": Lint(
        "critical",
        "`update()` is not called",
        "`step` of the same optimizer was called a second time, or `unscale_` after it, without `update()` in "
        "between: torch refuses that. Without `update()` the scale never changes, so overflows never stop. If an "
        "exception or `continue` ended an iteration after `step`, call `scaler.update()` before the next one.",
        "scaler.step(optimizer)\nscaler.update()",
    ),
    "no_gradients": Lint(
        "critical",
        "{optimizer} steps without gradients: none of its {count} parameters has one",
        'torch stops at such a step: "No inf checks were recorded for this optimizer." {why}',
        "{instead}",
    ),
    "used_before_scale": Lint(
        "critical",
        "`{where}()` is called before `scale()`",
        'torch stops there: "Attempted {where} but _scale is None." {why}',
        "scaler.scale(loss).backward()  # first, also after a resume\nscaler.unscale_(optimizer)\n"
        "scaler.step(optimizer)\nscaler.update()",
    ),
    "moved_outside_training": Lint(
        "warning",
        "The scaler was stepped before the first `scale()`{when}",
        "`step()` and `update()` ran without `scale()`, so they changed the growth tracker, and perhaps the scale. "
        "Loading an optimizer can do this: torch.distributed.checkpoint steps one that has no state yet, and "
        "Accelerate passes that step on to the scaler under FSDP2.",
        'scaler.load_state_dict(checkpoint["scaler"])  # last, after the optimizer',
    ),
    "no_step": Lint(
        "critical",
        "{title}",
        "{why}",
        "scaler.step(optimizer)  # instead of optimizer.step()\nscaler.update()  # only after a step",
    ),
    "shared_parameter": Lint(
        "warning",
        "{first} and {second} hold the same {count} parameters, and both step in one update",
        "Each optimizer divides the gradients by the scale. The second divides gradients that are already unscaled, "
        "so its step is close to zero.",
        "# give each parameter to one optimizer",
    ),
    "uncleared_gradients": Lint(
        "critical",
        "Gradients are never cleared: each update adds to those before",
        "The gradients of all batches so far are summed. Steps grow without end, and after one overflow the sum stays "
        "infinite, so that every further step is skipped.",
        "optimizer.zero_grad()  # before the next batch's backward pass",
    ),
    "poisoned_state": Lint(
        "critical",
        "NaN or infinity in {count} of the weights and optimizer states",
        "Every gradient computed from them is NaN, so every step is skipped and the scale falls: changing the loss "
        "scale won't help. Resume from an earlier checkpoint.",
        "model.load_state_dict(torch.load(checkpoint))",
        stop=True,
    ),
}


UNSTEPPED_MAX = 1000
"""No batch accumulates this many losses without a step."""
UNSTEPPED = {
    "title": f"`scale()` was called {UNSTEPPED_MAX} times, and `step()` never",
    "why": "The optimizer is stepped without the scaler: its gradients are still scaled, and overflows are not caught.",
}
UPDATED = {
    "title": "`update()` is called without `step()`",
    "why": 'torch stops there: "No inf checks were recorded prior to update." Either the optimizer is stepped without '
    "the scaler, or `update()` is also called for micro-batches without a step.",
}
ADDED = {
    "title": "A backward pass adds scaled gradients to gradients that are already unscaled",
    "why": "After `unscale_`, another backward pass ran before `step`. The gradients that it adds stay scaled, so they "
    "outweigh the earlier ones by the factor of the scale.",
}
AGAIN = {
    "title": "`unscale_()` is called a second time before `update()`",
    "why": "torch refuses that. Either the loop unscales before the last backward pass of a batch, or an iteration "
    "ended after `unscale_`, by an exception or `continue`. Then call `scaler.update()` before the next one.",
}
BARE = {
    "unscaled": {
        "loss": "an unscaled loss",
        "why": "The scaler divides all gradients by the scale, including those of a loss without `scale()`. These "
        "become far too small, and small gradients become zero in fp16.",
        "hint": "not loss.backward()",
    },
    "other": {
        "loss": "a loss that another scaler scaled",
        "why": "The scaler that steps the optimizer divides its gradients by its own scale. Where the two scales "
        "differ, the step is too large or too small by their ratio.",
        "hint": "with the scaler that steps the optimizer",
    },
}
NAMED_MAX = 64
ENOUGH = 3
"""What happens in this many updates in a row is no accident."""

Warn: TypeAlias = Callable[[str, str], None]
"""Takes a key and a message. Warns once for each key."""


class LintReporter:
    """Reports the lints of one stream, once each. Without a stream, nothing. May be called on any thread."""

    def __init__(self, stream: Stream | None = None, warn: Warn | None = None) -> None:
        self.connect(stream, warn)

    def connect(self, stream: Stream | None, warn: Warn | None) -> None:
        """Report to this stream from now on. Without one nothing is recorded, so nothing is reported."""
        self._stream, self._warn = stream, warn
        self._reported: set[str] = set()

    @property
    def connected(self) -> bool:
        return self._stream is not None

    def knows(self, rule: str) -> bool:
        """Whether the lint was already reported."""
        return rule in self._reported

    def submit(self, ready: Callable[[], bool], look: Callable[[], None]) -> None:
        """Submit a check that waits for values from a device."""
        if self._stream is not None:
            self._stream.submit(ready, look, brief=False)

    def say(
        self,
        rule: str,
        parameters: Sequence[str] = (),
        severity: str | None = None,
        **values: object,
    ) -> None:
        """Report a lint once. ``values`` fill the placeholders of its texts. ``severity`` replaces its own."""
        stream, warn = self._stream, self._warn
        if stream is None or warn is None or rule in self._reported:
            return
        self._reported.add(rule)
        lint = LINTS[rule]
        texts = lint.title, lint.explanation, lint.fix
        title, explanation, fix = (text.format(**values) for text in texts)
        severity = severity or lint.severity
        stream.event(
            "lint",
            ordinal=stream.ordinal,
            rule=rule,
            severity=severity,
            title=title,
            explanation=explanation,
            fix=fix,
            parameters=list(parameters[:NAMED_MAX]),
            stop=lint.stop,
        )
        if severity != "notice":
            instead = f" Write:\n{fix}" if fix else ""
            warn(f"finding {rule}", f"ampmon: {title}. {explanation}{instead}")
