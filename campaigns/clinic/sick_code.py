"""Faults in code: each training makes one common mistake in its loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from campaigns.clinic.adversarial import Adversarial
from campaigns.clinic.training import Training


class NeverCleared(Training):
    """Gradients are never set to zero."""

    def clear(self) -> None:
        pass


class ClippedScaled(Training):
    """Clips the gradients while they are still scaled."""

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), self.plan.clip or 1.0)


class UnscaledWithin(Training):
    """Unscales after the first of several backward passes."""

    def passes(self, number: int) -> Tensor:
        self.first = True
        return super().passes(number)

    def between(self) -> None:
        if self.first:
            self.scaler.unscale_(self.optimizer)
        self.first = False


class ScaledWithin(Training):
    """Sets the scale between the backward passes of one batch, and back after the step."""

    def passes(self, number: int) -> Tensor:
        self.first = True
        return super().passes(number)

    def between(self) -> None:
        if self.first:
            self.scaler.update(self.scaler.get_scale() * self.plan.strength)
        self.first = False

    def rescale(self) -> None:
        super().rescale()
        self.scaler.update(self.scaler.get_scale() / self.plan.strength)


class HalfParameters(Training):
    """The model itself is in fp16."""

    def make_model(self) -> nn.Module:
        return super().make_model().half()

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(number)
        return inputs.half(), targets

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext()


class BackwardUnderAutocast(Training):
    """The backward pass runs within autocast."""

    def backward(self, loss: Tensor) -> None:
        with torch.autocast("cpu", dtype=self.dtype):
            self.scaler.scale(loss).backward()


class NeverUpdated(Training):
    """Never calls `update()`."""

    def rescale(self) -> None:
        pass


class ReplacedModel(Training):
    """Replaces the model after the optimizer was built, so their parameters differ."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        self.model = copy.deepcopy(self.model)
        return optimizer


class ClearedEarly(Training):
    """Clears the gradients before the step of update ``strength``, as an evaluation in between might."""

    def update(self, number: int) -> None:
        self.early = number == self.plan.strength
        super().update(number)

    def step(self) -> None:
        if self.early:
            self.clear()
        super().step()


class StepsItself(Training):
    """Steps the optimizer directly, with gradients that are still scaled."""

    def step(self) -> None:
        self.optimizer.step()

    def rescale(self) -> None:
        """Do nothing: the scaler checked no gradients."""


class SharedParameter(Training):
    """Two optimizers share the last layer."""

    def made(self) -> None:
        self.second = torch.optim.SGD([*self.model.parameters()][-2:], lr=1e-2)

    def step(self) -> None:
        super().step()
        self.scaler.step(self.second)


class Scheduled(Training):
    """Steps a scheduler after updates that were not skipped."""

    def made(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)

    def rescale(self) -> None:
        before = self.scaler.get_scale()
        super().rescale()
        self.schedule(skipped=self.scaler.get_scale() < before)

    def schedule(self, *, skipped: bool) -> None:
        if not skipped:
            self.scheduler.step()


class ScheduledOnSkips(Scheduled):
    """Steps the scheduler after skipped updates too."""

    def schedule(self, *, skipped: bool) -> None:
        self.scheduler.step()


class Unscaled(Training):
    """Runs backward on the loss itself, and drops the scaled one."""

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss)
        loss.backward()


class GeneratorUnscaled(Adversarial):
    """Scales the critic's loss, but not the generator's, which follows it."""

    def backward(self, loss: Tensor) -> None:
        self.losses = getattr(self, "losses", 0) + 1
        if self.losses % 2:
            super().backward(loss)
        else:
            loss.backward()


class ScaledTwice(Training):
    """Scales a loss that is already scaled."""

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(self.scaler.scale(loss)).backward()


class BackwardTwice(Training):
    """Runs the backward pass of each loss twice."""

    def backward(self, loss: Tensor) -> None:
        scaled = self.scaler.scale(loss)
        scaled.backward(retain_graph=True)
        scaled.backward()


class NeverBackward(Training):
    """Scales a second loss, and never runs its backward pass."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.scaler.scale(loss * 2)


class StepsTwice(Training):
    """Steps the optimizer directly after the scaler has."""

    def step(self) -> None:
        super().step()
        self.optimizer.step()


class HiddenOverflow(Training):
    """Sets what is not finite in the gradients to zero before the scaler can see it."""

    def step(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
        super().step()


class NeverSteps(Training):
    """Unscales and clips, but never steps."""

    def step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)


class UnscaledTwice(Training):
    """Updates the scaler between unscaling and the step."""

    def step(self) -> None:
        self.scaler.unscale_(self.optimizer)
        self.scaler.update()
        self.scaler.step(self.optimizer)


class ClearedBeforeStep(Training):
    """Sets the gradients to zero between the backward pass and the step."""

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        super().step()


class ClearedWithin(Training):
    """Clears the gradients before each backward pass of a batch."""

    def backward(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        super().backward(loss)


class ScalerMadeAnew(Training):
    """Creates a new scaler for each of six epochs."""

    def numbers(self) -> Iterator[int]:
        for number in super().numbers():
            if number and number % (self.plan.updates // 6) == 0:
                self.scaler = self.make_scaler()
            yield number


class RateRaised(Training):
    """The learning rate is ``strength`` times as large from the middle on, as with a wrong schedule."""

    def update(self, number: int) -> None:
        if number == self.plan.updates // 2:
            for group in self.optimizer.param_groups:
                group["lr"] *= self.plan.strength
        super().update(number)


class RescaledWrongly(Training):
    """From the middle on gradients are divided by a wrong scale: steps are ``strength`` times as long."""

    def clip(self) -> None:
        self.scaler.unscale_(self.optimizer)
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps > self.plan.updates // 2:
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.grad *= self.plan.strength
