"""`GradScaler` and `watch`: hooks around the stock scaler's methods.

The hooks wrap `scale`, `step`, `update` and `_unscale_grads_`, the one place where every path has scaled gradients at
hand. Each hook calls the stock method with the same arguments and returns its result. There is one exception: a sampled
update may unscale and measure in one pass (`Measurer.unscale`), with the same result.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from ampmon import wire
from ampmon.client import current_run
from ampmon.client.monitor import Monitor
from ampmon.client.recorder import Recorder
from ampmon.client.troubles import warn
from ampmon.config import Config
from ampmon.errors import ConfigurationError
from ampmon.probe.gpu import kernels
from ampmon.probe.hooks import leave_untraced
from ampmon.system import signals
from ampmon.training.built import startup
from ampmon.training.call import Call
from ampmon.training.construction import call_of
from ampmon.training.parameters import Models


_MONITOR = "_ampmon_monitor"
_OPTIONS = "_ampmon_options"
_UNSEEN = "_ampmon_unseen"
"""Attribute of a disabled scaler that has scaled no loss yet: the run that checks its first loss."""

S = TypeVar("S", bound=torch.amp.GradScaler)
OnFinding: TypeAlias = Callable[[wire.Finding], object]

if TYPE_CHECKING:
    _Base = torch.amp.GradScaler
else:
    _Base = object


class _Shown:
    """What the monitor saw and cost, or None if the scaler or the monitoring is disabled. Never syncs."""

    # Not a property, which would hide a `monitor` that a scaler keeps among its own attributes.
    def __get__(self, scaler: object, _: object = None) -> Monitor | None:
        monitor: Monitor | None = getattr(scaler, _MONITOR, None)
        return monitor


class Monitored(_Base):
    """A mixin over any GradScaler: it calls the stock methods and tells the monitor about each call."""

    _ampmon_monitor: Monitor | None = None
    monitor = _Shown()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # A class of `watch` is none of the user's, who may register theirs.
        if "_ampmon_base" not in cls.__dict__:
            super().__init_subclass__(**kwargs)

    def _ampmon_stock(self) -> list[Any]:
        """The base class's functions behind scale, _unscale_grads_, step, _maybe_opt_step and update, in this order.

        None for each that is not a plain function.
        """
        stock: Any = super()
        steps = stock.step, stock._maybe_opt_step
        methods = stock.scale, stock._unscale_grads_, *steps, stock.update
        # Unbound: `weakref.finalize` holds the monitor and its gear, which must not hold the scaler.
        return [getattr(each, "__func__", None) for each in methods]

    def scale(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        monitor = self._ampmon_monitor
        if monitor is None and _MONITOR not in self.__dict__:  # a copy, or unpickled
            _attach_copy(self)
            monitor = self._ampmon_monitor
        if monitor is not None:
            gear = monitor.gear
            if gear is not None and not (args or kwargs) and gear.scaling(outputs):
                return gear.scale(self, outputs)
            monitor.scaling(self, outputs)
            scaled = super().scale(outputs, *args, **kwargs)
            monitor.scaled(scaled)
            return scaled
        elif _UNSEEN in self.__dict__:
            _see_unscaled(self, outputs)
        return super().scale(outputs, *args, **kwargs)

    def unscale_(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().unscale_(optimizer, *args, **kwargs)
        except Exception as error:
            if self._ampmon_monitor is not None:
                self._ampmon_monitor.unscale_raised(self, error, optimizer)
            raise

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> dict[torch.device, torch.Tensor]:
        monitor = self._ampmon_monitor
        if monitor is None:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, *args, **kwargs)
        gear = monitor.gear
        try:
            if gear is not None:
                found = gear.unscaling(self, optimizer, inv_scale, found_inf, *args, **kwargs)
                if found is not None:
                    return found
            allow_fp16 = args[0] if args else kwargs.get("allow_fp16", False)
            monitor.before_unscale(self, optimizer, inv_scale, bool(allow_fp16))
            found = monitor.unscale(optimizer, inv_scale, found_inf)
            if found is None:
                found = super()._unscale_grads_(optimizer, inv_scale, found_inf, *args, **kwargs)
        except Exception as error:
            monitor.raised(self, "unscale_", error, optimizer)
            raise
        monitor.after_unscale(optimizer, found)
        return found

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        monitor = self._ampmon_monitor
        if monitor is None:
            return super().step(optimizer, *args, **kwargs)
        gear = monitor.gear
        try:
            if gear is not None and gear.stepping(optimizer):
                # Passing on empty *args and **kwargs would take 0.16 us longer than this test.
                if args or kwargs:
                    return gear.step(self, optimizer, *args, **kwargs)
                return gear.step(self, optimizer)
            monitor.stepping(self, optimizer)
            returned = super().step(optimizer, *args, **kwargs)
            monitor._linter.has_stepped(optimizer)
            return returned
        except Exception as error:
            monitor.raised(self, "step", error, optimizer)
            raise

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        monitor = self._ampmon_monitor
        if monitor is not None:
            gear = monitor.gear
            if gear is not None:
                if args or kwargs:
                    return gear.decide(self, optimizer, optimizer_state, *args, **kwargs)
                return gear.decide(self, optimizer, optimizer_state)
            optimizer_state = monitor.deciding(optimizer, optimizer_state)
        return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)

    def update(self, *args: Any, **kwargs: Any) -> Any:
        monitor = self._ampmon_monitor
        if monitor is None:
            return super().update(*args, **kwargs)
        gear = monitor.gear
        try:
            if gear is not None and not (args or kwargs) and gear.update(self):
                return None
            monitor.before_update(self)
            returned: Any = super().update(*args, **kwargs)
        except Exception as error:
            monitor.raised(self, "update", error)
            raise
        new_scale = args[0] if args else kwargs.get("new_scale")
        monitor.after_update(self, new_scale is not None)
        return returned

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        returned: Any = super().load_state_dict(state_dict, *args, **kwargs)
        if self._ampmon_monitor is not None:
            self._ampmon_monitor.state_loaded(state_dict)
        return returned

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # A copy creates its own monitor at its first `scale()`. A copy that is only stored creates none.
        state.pop(_MONITOR, None)
        state.pop(_UNSEEN, None)
        return state


def _attach(
    scaler: Any,
    *,
    model: Models = None,
    name: str | None = None,
    monitor: Config | None = None,
    on_finding: OnFinding | None = None,
    call: Call | None = None,
) -> None:
    """Give the scaler a monitor, and begin a run if there is none.

    A disabled scaler gets no monitor. Its first loss decides what to warn about.
    """
    state = scaler.__dict__
    # `scale()` attaches a scaler that lacks it: a copy, or one for which a signal handler's exception ended this call.
    state.pop(_MONITOR, None)
    # Copies attach with these. Without model and on_finding, which a pickle must not carry along.
    state[_OPTIONS] = {"name": name, "monitor": monitor, "call": call}
    run = current_run.ensure()
    if run is not None and scaler.is_enabled():
        leave_untraced()
        config = monitor or Config()
        seen = state[_MONITOR] = Monitor(
            scaler, model=model, name=name, config=config, on_finding=on_finding, call=call
        )
        # Not at exit, where nothing copies the model any more.
        weakref.finalize(scaler, _unhook, seen).atexit = False
        kernels.expect(getattr(scaler, "_device", "cuda"))
        current_run.greet(run)
        return
    state[_MONITOR] = None
    if run is not None:
        run.event("disabled", scaler=type(scaler).__name__)
        state[_UNSEEN] = run


def _unhook(monitor: Monitor) -> None:
    """Remove the hooks of a scaler that is gone. Else garbage collection might, while the script copies its model."""
    for part in (monitor._activations, monitor.sampler, monitor._linter):
        part.drop()
    monitor._order.close()


def _see_unscaled(scaler: Any, loss: Any) -> None:
    """Warn about a disabled scaler. The dtype and device of its first loss decide what the warning says."""
    run: Recorder = scaler.__dict__.pop(_UNSEEN)
    words = f"this {type(scaler).__name__} is disabled"
    if not run.unscaled(loss, words, scaler.__dict__.get(_OPTIONS, {}).get("call")):
        why = "(no CUDA here, or enabled=False, as for bf16), so there is nothing to measure."
        run.warn("disabled", f'ampmon: {words} {why} On a CPU write GradScaler("cpu").')


def _check(model: Models, monitor: Config | None, on_finding: OnFinding | None) -> None:
    if on_finding is not None and not callable(on_finding):
        raise TypeError(f"on_finding={on_finding!r}: must be a function of one finding")
    if monitor is not None and monitor.activations is not None and model is None:
        raise ConfigurationError(
            f"activations={monitor.activations} needs the modules: write "
            f"model=model, monitor=ampmon.Config(activations={monitor.activations})"
        )


def _attach_copy(scaler: Any) -> None:
    """Give a copy its monitor in the middle of training. On an error, warn and go on without a monitor."""
    try:
        _attach(scaler, **scaler.__dict__.get(_OPTIONS, {}))
        if scaler._ampmon_monitor is not None:
            scaler._ampmon_monitor.begins(fresh=False)
    except Exception as error:
        signals.let_through(error)
        scaler.__dict__[_MONITOR] = None
        warn(f"ampmon: not recording: {error}")


class GradScaler(Monitored, torch.amp.GradScaler):
    """A `torch.amp.GradScaler` that reports what it does.

    It takes the arguments of `torch.amp.GradScaler`, with the same defaults. Weights, scale and `state_dict` stay bit
    for bit the same. The first scaler of a process starts a run.

    Keyword-only arguments:

    - ``model``: the module or modules whose parameter names are shown. By default, names come from the optimizer, else
      from the models in the process, else from index and shape. To find these models, the first scaler searches all
      Python objects once: 35 ms for 467 000 objects. ``Config(activations=...)`` needs ``model``. Pass a compiled model
      as `torch.compile` returned it.
    - ``name``: name of the scaler's series, if a process has several scalers.
    - ``monitor``: an `ampmon.Config` that says what to measure, and how often.
    - ``on_finding``: a function that is called on its own thread with each `ampmon.wire.Finding` that is new or more
      severe. Its exceptions are counted as errors. It is never called offline, and copies of the scaler have none.

    Raises TypeError if ``device`` is a number, as in the old spelling ``GradScaler(65536.0)``, and ConfigurationError
    for activations without a model. The constructor may write to disk and start the sender process. After that, ampmon
    never raises, syncs or blocks.
    """

    def __init__(  # noqa: PLR0913 - the stock scaler's six, and four more by keyword
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        model: Models = None,
        name: str | None = None,
        monitor: Config | None = None,
        on_finding: OnFinding | None = None,
    ) -> None:
        if isinstance(device, (int, float)):
            raise TypeError(
                f"ampmon.GradScaler({device!r}): the first argument is the device, as in torch.amp.GradScaler. "
                f"Write GradScaler(init_scale={device!r})."
            )
        _check(model, monitor, on_finding)
        super().__init__(
            device,
            init_scale=init_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            enabled=enabled,
        )
        ours: dict[str, Any] = {
            "model": model,
            "name": name,
            "monitor": monitor,
            "on_finding": on_finding,
        }
        _attach(self, **ours, call=call_of(self, watched=False, enabled=enabled, **ours))
        if self._ampmon_monitor is not None:
            self._ampmon_monitor.begins(fresh=True)


def watch(
    scaler: S,
    *,
    model: Models = None,
    name: str | None = None,
    monitor: Config | None = None,
    on_finding: OnFinding | None = None,
) -> S:
    """Watch an existing scaler in place, and return it.

    Use it for a scaler that a framework created: torch's, FSDP's `ShardedGradScaler` or a vendor's subclass. References
    to the scaler stay valid. It pickles as its own class, without the monitor. A second `watch` replaces the monitor.

    Takes the keyword-only arguments of `GradScaler`. Raises TypeError if ``scaler`` is not a GradScaler, and
    ConfigurationError for activations without a model. May write to disk and start the sender process. Never syncs.
    """
    if not callable(getattr(scaler, "update", None)) or not callable(
        getattr(scaler, "is_enabled", None)
    ):
        raise TypeError(f"ampmon.watch: {type(scaler).__name__} is not a GradScaler")
    _check(model, monitor, on_finding)
    ours = {"model": model, "name": name, "monitor": monitor, "on_finding": on_finding}
    _watch(scaler, **ours, call=call_of(scaler, watched=True, **ours))
    return scaler


def adopt(scaler: Any) -> None:
    """Watch a scaler of a script that does not use ampmon itself, as under `ampmon run`."""
    _watch(scaler, call=call_of(scaler, watched=False))


def _watch(scaler: Any, **options: Any) -> None:
    if not isinstance(scaler, Monitored):
        kind = getattr(type(scaler), "_ampmon_waits_as", type(scaler))  # under `ampmon run`
        scaler.__class__ = _watched_class(kind)
    _attach(scaler, **options)


_watched: dict[type, type] = {}


def _watched_class(base: type) -> type:
    if base not in _watched:
        members = startup().passing_as(base) | {"_ampmon_base": base}
        if hasattr(base, "monitor"):  # the class uses this name for something else
            members["monitor"] = inspect.getattr_static(base, "monitor")
        _watched[base] = type(base.__name__, (Monitored, base), members)
    return _watched[base]
