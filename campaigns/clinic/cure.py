"""Runs a finding's code in the training it was written for: each statement where a user would paste it.

A loop call in the code replaces the training's own. The code is executed, not interpreted: wrong code does not cure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ampmon
from campaigns.clinic import sick_code, sick_runs
from campaigns.clinic.patient import Plan
from campaigns.clinic.training import Training


PHASES = {
    "unscale_": "clip",
    "clip_grad_norm_": "clip",
    "scaler.step": "step",
    "scaler.update": "rescale",
    "scheduler.step": "schedule",
    "optimizer.zero_grad": "clear",
}
"""The training's method that makes each call, in loop order."""
_PLACES = {
    "layer": r"with .* layer\(",
    "autocast": r"with torch\.autocast",
    "save": r"checkpoint\[.* =",
    "resume": r".*checkpoint\[",
    "scaler": r"(scaler|state) =|.*\*\*state|from |import ",
    "built": r"model\.float\(",
    "model": r"(model|optimizer) =",
    "loss": r"(loss|size|usual) =",
    "backward": r".*\.backward\(",
    "before": r"for group in optimizer\.param_groups",
    "after": r".*scaler\.get_scale\(|.*(" + "|".join(map(re.escape, PHASES)) + r")\(",
}
"""How the statements of each place begin. The first match wins."""

_AROUND = re.compile(r"around (?:the layer of |module )?(\S+)")
"""The module, or a parameter of it, around which a comment puts the code."""

Places: TypeAlias = Mapping[str, Sequence[ast.stmt]]
"""The statements of a fix, by their place in the training."""


def places_of(code: str) -> Places:
    """Sort a fix by place. Raise SyntaxError if it is not Python, ValueError if a statement has no place."""
    places: dict[str, list[ast.stmt]] = {name: [] for name in _PLACES}
    for statement in ast.parse(code).body:
        text = ast.unparse(statement)
        fit = [name for name, pattern in _PLACES.items() if re.match(pattern, text, re.DOTALL)]
        if not fit:
            raise ValueError(f"no place in a training: {text}")
        if fit[0] == "backward":  # earlier calls go ahead of it
            places["before"] += places["after"]
            places["after"] = []
        places[fit[0]].append(_Filled().visit(statement))
    return places


def _calls(statements: Iterable[ast.stmt]) -> list[str]:
    """The calls of `PHASES` in the statements, in loop order."""
    made = "\n".join(map(ast.unparse, statements))
    return [call for call in PHASES if f"{call}(" in made]


class _Filled(ast.NodeTransformer):
    """Replaces `momentum=...` with the value of the script's own optimizer."""

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        if isinstance(node.value, ast.Constant) and node.value.value is Ellipsis:
            node.value = ast.parse(f"optimizer.defaults[{node.arg!r}]", mode="eval").body
        return node


def cured(kind: type[Training], fix: str) -> type[Training]:
    """Return the training with the fix in it. Raises as `places_of` does."""
    around = _AROUND.search(fix)
    known = {"places": places_of(fix), "layer": around[1] if around else ""}
    return cast("type[Training]", type(f"Cured{kind.__name__}", (_Cured, kind), known))


def twin(kind: type[Training], plan: Plan) -> tuple[type[Training], Plan]:
    """Return the healthy twin of a faulty training: in fp32, without a mistake in code or batches."""
    if kind.__module__ in (sick_code.__name__, sick_runs.__name__):
        kind = cast("type[Training]", kind.__base__)
    strength = plan.strength if kind.healthy is None else kind.healthy
    return kind, replace(plan, dtype="float32", enabled=False, strength=strength)


class _Cured(Training):
    places: Places
    layer: str

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.names: dict[str, Any] = {"self": self, "torch": torch, "ampmon": ampmon}
        self.names |= {"device": "cpu", "lr": plan.lr, "max_norm": plan.clip or 1.0, "usual": None}
        after = _calls(self.places["after"])
        self.start = PHASES[after[0]] if after else ""
        self.calls = [*_calls(self.places["before"]), *after]
        self.replaced = {PHASES[call] for call in self.calls}
        super().__init__(plan, folder)

    def run(self, statements: Sequence[ast.stmt], **names: object) -> None:
        """Execute statements, with the training's own objects under the names that scripts use."""
        own = ("model", "optimizer", "scaler", "scheduler")
        self.names |= {name: vars(self)[name] for name in own if name in vars(self)}
        self.names |= names
        module = ast.fix_missing_locations(ast.Module([*statements], []))
        exec(compile(module, "fix", "exec"), self.names)

    # -- setup ----------------------------------------------------------------------------------------------------

    def make_model(self) -> nn.Module:
        model = super().make_model()
        self.run(self.places["built"], model=model)
        if self.places["layer"]:
            layers = model.module if isinstance(model, DistributedDataParallel) else model
            names = [name for name, _ in layers.named_modules() if name]
            module = self.layer if self.layer in names else self.layer.rpartition(".")[0]
            layer = layers.get_submodule(module)
            layer.forward = self._around(layer.forward)  # type: ignore[method-assign]
        return model

    def _around(self, layer: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        def forward(inputs: Tensor) -> Tensor:
            self.run(self.places["layer"], layer=layer, x=inputs)
            return cast("Tensor", self.names["out"])

        return forward

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.optimizer = super().make_optimizer()
        self.run(self.places["model"], parameters=[*self.model.parameters()])
        self.model = self.names["model"]
        return cast("torch.optim.Optimizer", self.names["optimizer"])

    def make_scaler(self) -> torch.amp.GradScaler:
        if not self.places["scaler"]:
            return super().make_scaler()
        if "scaler" not in vars(self):  # made once, before the loop
            self.run(self.places["scaler"])
        return cast("torch.amp.GradScaler", self.names["scaler"])

    def made(self) -> None:
        super().made()
        if (self.folder / "checkpoint").exists():
            self.run(self.places["resume"], checkpoint=torch.load(self.folder / "checkpoint"))

    def end(self) -> None:
        super().end()
        if self.places["save"]:
            checkpoint = torch.load(self.folder / "checkpoint")
            self.run(self.places["save"], checkpoint=checkpoint)
            torch.save(checkpoint, self.folder / "checkpoint")

    # -- loop -----------------------------------------------------------------------------------------------------

    def passes(self, number: int) -> Tensor:
        self.run(self.places["before"])
        if not any(isinstance(each, ast.For) for each in self.places["backward"]):
            return super().passes(number)
        losses: list[Tensor] = []

        def loss_of(_: object) -> Tensor:
            losses.append(self.loss(number))
            return losses[-1]

        batch = range(self.plan.accumulate)
        self.run(self.places["backward"], batch=batch, loss_of=loss_of)
        return losses[-1]

    def between(self) -> None:
        called = type(self).__mro__[2].between.__code__.co_names
        if not any(call.rpartition(".")[2] in called for call in self.calls):
            super().between()

    def loss(self, number: int) -> Tensor:
        loss = super().loss(number)
        self.run(self.places["loss"], loss=loss)
        return cast("Tensor", self.names["loss"])

    def autocast(self) -> AbstractContextManager[object]:
        for statement in self.places["autocast"]:
            assert isinstance(statement, ast.With)
            expression = ast.Expression(statement.items[0].context_expr)
            return cast(
                "AbstractContextManager[object]",
                eval(compile(expression, "fix", "eval"), self.names),
            )
        return super().autocast()

    def backward(self, loss: Tensor) -> None:
        if self.places["backward"]:
            self.run(self.places["backward"], loss=loss)
        else:
            super().backward(loss)

    def clip(self) -> None:
        self._call("clip", super().clip)

    def step(self) -> None:
        self._call("step", super().step)

    def rescale(self) -> None:
        self._call("rescale", super().rescale)

    def schedule(self, *, skipped: bool) -> None:
        self._call("schedule", lambda: super(_Cured, self).schedule(skipped=skipped))

    def clear(self) -> None:
        self._call("clear", super().clear)

    def _call(self, phase: str, own: Callable[[], None]) -> None:
        if phase == self.start:
            self.run(self.places["after"])
        elif phase not in self.replaced:
            own()
