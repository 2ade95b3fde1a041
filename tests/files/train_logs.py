"""Logs of trainings with known faults, as DeepSpeed, Megatron-LM, fairseq, Apex and users' own loops write them.

Each generator moves its scale by its framework's rules. A step overflows if the scale exceeds its limit. The lines are
those of the frameworks' sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta


Limit = Callable[[int], float]
"""The largest scale at which a step's gradient does not overflow; 0 if no scale helps."""

START = datetime(2026, 3, 1, 9, 0, 0)
EACH = 10
"""The steps between two lines of progress."""


def stamp(step: int, form: str) -> str:
    at = START + timedelta(milliseconds=350 * step)
    return at.strftime(form) + (f",{at.microsecond // 1000:03d}" if form.endswith("%S") else "")


def deepspeed(
    steps: int, limit: Limit, *, window: int, power: int, hysteresis: int = 2
) -> Iterator[str]:
    """ZeRO's log: the engine's configuration, a line per skip, and progress every tenth step."""

    def said(step: int, place: str, words: str) -> str:
        return f"[{stamp(step, '%Y-%m-%d %H:%M:%S')}] [INFO] [{place}] {words}"

    yield said(
        0, "logging.py:96:log_dist", "[Rank 0] step=0, skipped=0, lr=[3e-05], mom=[(0.9, 0.999)]"
    )
    arguments = {
        "init_scale": 2**power,
        "scale_window": window,
        "delayed_shift": hysteresis,
        "consecutive_hysteresis": False,
        "min_scale": 1,
    }
    yield said(0, "config.py:1000:print", f"  dynamic_loss_scale_args ...... {arguments}")
    scale, left, last, skipped = float(2**power), hysteresis, -1, 0
    for step in range(steps):
        if scale > limit(step):
            skipped += 1
            words = (
                f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {int(scale)}, "
            )
            if left > 1:
                tail = f"but hysteresis is {left}. Reducing hysteresis to {left - 1}"
                left -= 1
            elif scale == 1:
                yield "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
                return
            else:
                tail = f"reducing to {int(scale / 2)}"
                scale /= 2
            yield said(step + 1, "loss_scaler.py:183:update_scale", words + tail)
            last = step
        elif (step - last - 1) > 0 and (step - last - 1) % window == 0:
            left, scale = hysteresis, scale * 2
        if (step + 1) % EACH == 0:
            words = f"[Rank 0] step={step + 1}, skipped={skipped}, lr=[3e-05], mom=[(0.9, 0.999)]"
            yield said(step + 1, "logging.py:96:log_dist", words)


def megatron(steps: int, limit: Limit, *, power: int = 32, window: int = 1000) -> Iterator[str]:
    """`training_log`: the arguments, then a line every tenth iteration with the skips since the last line."""
    yield f"  loss_scale_window ............................... {float(window)}"
    yield "  hysteresis ...................................... 2"
    yield "  min_loss_scale .................................. 1.0"
    scale, left, clean, skipped = 2.0**power, 2, 0, 0
    for step in range(steps):
        if scale > limit(step):
            skipped, clean, left = skipped + 1, 0, left - 1
            if left <= 0:
                scale = max(scale / 2, 1.0)
        else:
            clean += 1
            if clean == window:
                clean, left, scale = 0, 2, scale * 2
        if (step + 1) % EACH == 0:
            loss = "" if skipped == EACH else f" lm loss: {10 / (step + 10):.6E} |"
            yield (
                f" [{stamp(step, '%Y-%m-%d %H:%M:%S').partition(',')[0]}] iteration {step + 1:8d}/{steps:8d} | "
                f"consumed samples: {32 * step:12d} | elapsed time per iteration (ms): 350.0 | "
                f"learning rate: 1.500000E-04 | "
                f"global batch size:    32 |{loss} loss scale: {scale:.1f} | grad norm: 1.234 | number of skipped "
                f"iterations: {skipped:3d} | number of nan iterations:   0 |"
            )
            skipped = 0


def fairseq(steps: int, limit: Limit, *, window: int = 2048) -> Iterator[str]:
    """The trainer's overflow notes, and progress as JSON. `num_updates` counts only applied updates."""
    settings = f"'fp16_init_scale': 128, 'fp16_scale_window': {window}, 'min_loss_scale': 0.0001"
    yield f"2026-03-01 09:00:00 | INFO | fairseq_cli.train | {{'common': {{{settings}}}}}"
    scale, last, done = 128.0, -1, 0
    for step in range(steps):
        when = stamp(step, "%Y-%m-%d %H:%M:%S").partition(",")[0]
        if scale > limit(step):
            scale, last = scale / 2, step
            if scale <= 1e-4:
                yield "FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding."
                return
            yield (
                f"{when} | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss "
                f"scale to: {scale}"
            )
            continue
        done += 1
        if (step - last) % window == 0:
            scale *= 2
        if done % EACH == 0:
            yield (
                f'{when} | INFO | train_inner | {{"epoch": 1, "update": 0.012, "loss": "9.1", "ppl": "543.2", "wps": '
                f'"288.7", "num_updates": "{done}", "lr": "2e-05", "gnorm": "1.751", "loss_scale": "{scale:g}", '
                f'"train_wall": "99", "wall": "105"}}'
            )


def apex(steps: int, limit: Limit) -> Iterator[str]:
    """The line `amp.scale_loss` prints per skip, among the loop's own lines."""
    scale, clean = 2.0**16, 0
    for step in range(steps):
        if scale > limit(step):
            scale, clean = scale / 2, 0
            yield f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}"
        else:
            clean += 1
            if clean == 2000:
                scale, clean = min(scale * 2, 2.0**24), 0
        if step % EACH == 0:
            yield f"Epoch: [0] step {step}/{steps} Loss 2.6922e+00 (3.1857e+00) lr 0.1"


def prints(
    steps: int,
    limit: Limit,
    *,
    window: int = 2000,
    anew: tuple[int, ...] = (),
    form: str = "step {step}: loss 2.31 scale {scale}",
    each: int = 1,
) -> Iterator[str]:
    """A loop that prints `scaler.get_scale()` and makes a new scaler at each step in ``anew``."""
    scale, clean = 2.0**16, 0
    for step in range(steps):
        if step in anew:
            scale, clean = 2.0**16, 0
        if scale > limit(step):
            scale, clean = scale / 2, 0
        elif (clean := clean + 1) == window:
            scale, clean = scale * 2, 0
        if step % each == 0:
            yield form.format(step=step, scale=scale)


def always(scale: float) -> Limit:
    return lambda _: scale


def broken_from(step: int, before: float) -> Limit:
    """A limit of ``before`` up to ``step``; from there on no scale helps."""
    return lambda at: before if at < step else 0.0


KNOWN = {
    "deepspeed that diverges": (
        deepspeed(600, broken_from(560, 2.0**15), window=1000, power=16),
        {"consecutive_skips", "scale_floor"},
    ),
    "deepspeed with a short window": (
        deepspeed(900, always(2.0**12), window=20, power=12, hysteresis=1),
        {"sawtooth"},
    ),
    "megatron that diverges": (
        megatron(800, broken_from(700, 2.0**18)),
        {"consecutive_skips", "scale_floor"},
    ),
    "megatron with a short window": (
        megatron(3000, always(2.0**15), power=15, window=50),
        {"sawtooth"},
    ),
    "fairseq that explodes": (
        fairseq(400, broken_from(300, 64.0)),
        {"consecutive_skips", "low_scale"},
    ),
    "fairseq with a short window": (fairseq(1500, always(64.0), window=32), {"sawtooth"}),
    "apex without end": (apex(500, broken_from(200, 2.0**14)), {"dead_scale", "collapse_forecast"}),
    "a scaler made anew at a resume": (
        prints(4000, always(2.0**11), anew=(3900,), window=2000),
        {"forgotten_state"},
    ),
    "a scaler made anew each epoch": (
        prints(9000, always(2.0**18), anew=tuple(range(0, 9000, 1500))),
        {"stuck_scale"},
    ),
    "a scale that dies": (prints(400, broken_from(150, 2.0**16), form="{scale}"), {"dead_scale"}),
}
"""The lines, and the findings of which one must be the verdict."""

HEALTHY = {
    "deepspeed": deepspeed(2500, always(2.0**14), window=1000, power=16),
    "megatron": megatron(2500, always(2.0**14), power=16),
    "fairseq": fairseq(2500, always(2.0**8), window=2048),
    "prints": prints(9000, always(2.0**15), each=10),
}
