"""Waits for torch's GradScaler in a Python under `ampmon run`, and has ampmon watch each scaler that scales.

This folder is first on PYTHONPATH, so every Python under `ampmon run` runs this file, whether it trains or not. It
imports neither torch nor ampmon, and of the standard library only modules that Python has already loaded. After a
failure it prints one line to stderr, and the script runs as it would without ampmon.
"""

from __future__ import annotations

import os
import sys


TYPE_CHECKING = False  # avoids importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULES_MAX = 100_000
"""Parameters of living modules beyond this number get no names."""
SCALER, MODULE = "torch.amp.grad_scaler", "torch.nn.modules.module"

built: Any = {}
"""The living modules that registered parameters or children, by id. Weak once modules are added."""
sees_modules: list[bool] = []
"""Not empty once modules are added to `built`."""
_made = {"scalers": 0, "enabled": 0, "refused": 0, "used": 0}
"""Numbers of scalers: made, enabled, disabled by torch although not asked to be, and used."""
_waiting_classes: dict[type, type] = {}
_said: list[str] = []
_installed: list[bool] = []


def say_once(words: str) -> None:
    """Print one line to stderr, and no second one in this process."""
    if not _said and sys.stderr is not None:
        _said.append(words)
        try:  # noqa: SIM105 - contextlib would have to be imported
            sys.stderr.write(" ".join(f"ampmon: {words}".split()) + "\n")
        except Exception:
            pass  # it is closed, nobody reads it, or it is the script's own


def _fail(error: Exception) -> None:
    try:
        from ampmon.system import signals
    except Exception:  # ampmon is missing or broken, as the line below says
        pass
    else:
        signals.let_through(error)
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        words = f"{error}, in {sys.executable}: install ampmon there too"
    say_once(f"not watching this process: {words}")


def install() -> None:
    """Watch the scalers that this process makes from now on. Never raises."""
    if _installed or os.environ.get("AMPMON_MODE") == "disabled":
        return
    _installed.append(True)
    waited: dict[str, Callable[[Any], None]] = {}
    for name, work in ((SCALER, _patch_scaler), (MODULE, see_modules)):
        if name in sys.modules:
            _attempt(work, sys.modules[name])
        else:
            waited[name] = work
    if waited:
        sys.meta_path.insert(0, Finder(waited))


class Finder:
    """An import hook that calls the function in ``work`` for each module once loaded, and goes after the last."""

    def __init__(self, work: dict[str, Callable[[Any], None]]) -> None:
        self._work = work

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return what the other finders find, with a loader that calls us once the module is loaded."""
        if name not in self._work:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                _attempt(self._follow, spec)
                return spec
        return None

    def _follow(self, spec: Any) -> None:
        loader, name = spec.loader, spec.name
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            # First: a zipimporter loads all modules of its archive, so others may come meanwhile.
            del loader.exec_module
            load(module)
            work = self._work.pop(name, None)
            if not self._work and self in sys.meta_path:
                sys.meta_path.remove(self)
            if work is not None:
                _attempt(work, module)

        loader.exec_module = exec_module


def _attempt(work: Callable[[Any], None], given: Any) -> None:
    try:
        work(given)
    except Exception as error:
        _fail(error)


# -- scalers ------------------------------------------------------------------------------------------------------


def _patch_scaler(module: Any) -> None:
    """Make each scaler wait for its first call, copies and unpickled ones too, which run no `__init__`."""
    import atexit
    import functools
    import inspect

    kind = module.GradScaler
    init, setstate = kind.__init__, kind.__setstate__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        asked = args[5] if len(args) > 5 else kwargs.get("enabled", True)
        _made["refused"] += bool(asked) and not self.__dict__.get("_enabled")
        _attempt(_wait, self)

    @functools.wraps(setstate)
    def __setstate__(self: Any, *args: Any, **kwargs: Any) -> None:
        setstate(self, *args, **kwargs)
        _attempt(_wait, self)
        if hasattr(type(self), "_ampmon_waits_as"):
            _restore(self)

    pairs: Any = ((__init__, init), (__setstate__, setstate))
    for wrapper, stock in pairs:
        # getfullargspec ignores __wrapped__. When a warning of torch's points at its caller's line, Python skips frames
        # of a file with this name, as it does those of an import.
        wrapper.__signature__ = inspect.signature(stock)
        wrapper.__code__ = wrapper.__code__.replace(
            co_filename="<ampmon run, like importlib._bootstrap>"
        )
    kind.__init__, kind.__setstate__ = __init__, __setstate__
    atexit.register(_attempt, _conclude, module)


def _wait(scaler: Any) -> None:
    """Give an enabled scaler a class whose first call has it watched."""
    kind = type(scaler)
    _made["scalers"] += 1
    if not scaler.__dict__.get("_enabled"):
        return
    _made["enabled"] += 1
    if not hasattr(kind, "_ampmon_monitor") and not hasattr(kind, "_ampmon_waits_as"):
        scaler.__class__ = _waiting_classes.get(kind) or _waiting_class(kind)


def _restore(scaler: Any) -> None:
    """Note that a scaler is given a state before it scales."""
    scaler.__dict__["_ampmon_restored"] = True


class _Unannounced:
    """Comes before a user's class in the bases of ours, so that its `__init_subclass__` registers no class of ours."""

    def __init_subclass__(cls, **_: Any) -> None:
        pass


def _waiting_class(kind: Any) -> type:
    import functools

    def passing_on(name: str, before: Callable[[Any], None]) -> Any:
        @functools.wraps(getattr(kind, name))
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if hasattr(type(self), "_ampmon_waits_as"):
                before(self)
            # A method bound before the first call goes to the monitored class afterwards.
            target = kind if hasattr(type(self), "_ampmon_waits_as") else type(self)
            return getattr(target, name)(self, *args, **kwargs)

        return call

    def begin(self: Any) -> None:
        waiting, self.__class__ = type(self), kind
        try:
            _attempt(_watch, self)
        except BaseException:  # raised by a signal handler: the next call begins again
            if type(self) is kind:
                self.__class__ = waiting
            raise

    # Else torch.compile would trace ampmon's beginning, if the first call is in a compiled step.
    begin = sys.modules["torch"]._disable_dynamo(begin)
    members = {name: passing_on(name, begin) for name in ("scale", "unscale_", "step")}
    members["update"] = passing_on("update", lambda _: None)
    members["load_state_dict"] = passing_on("load_state_dict", _restore)
    members |= passing_as(kind) | {"_ampmon_waits_as": kind}
    _waiting_classes[kind] = type(kind.__name__, (_Unannounced, kind), members)
    return _waiting_classes[kind]


def passing_as(kind: Any) -> dict[str, Any]:
    """Members of a class whose objects look, pickle and copy as those of ``kind``, without what is ours.

    The pickle loads without ampmon.
    """
    return {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        # Pickle compares the class in a pickle with this one.
        "__class__": property(lambda _: kind, object.__dict__["__class__"].__set__),
        "__reduce_ex__": lambda self, protocol: _reduced_as(kind, self, protocol),
    }


def _reduced_as(kind: Any, scaler: Any, protocol: Any) -> Any:
    import copyreg

    # A twin, since another thread may use the scaler meanwhile.
    twin = object.__new__(kind)
    for name, value in scaler.__dict__.copy().items():
        if not name.startswith("_ampmon_"):
            twin.__dict__[name] = value
    for name in copyreg._slotnames(kind):  # type: ignore[attr-defined]
        if hasattr(scaler, name):
            object.__setattr__(twin, name, getattr(scaler, name))
    try:
        return kind.__reduce_ex__(twin, protocol)
    finally:
        if hasattr(kind, "__del__"):  # it would release what the scaler still uses
            twin.__class__ = _Unannounced


def _watch(scaler: Any) -> None:
    _made["used"] += 1
    fresh = "_ampmon_restored" not in scaler.__dict__
    from ampmon.client.scaler import adopt

    adopt(scaler)
    monitor = scaler.__dict__.get("_ampmon_monitor")
    if monitor is not None:
        monitor.begins(fresh=fresh)


# -- modules ------------------------------------------------------------------------------------------------------


def see_modules(module: Any) -> None:
    """Remember each nn.Module that is built, for its parameters' names. Forward hooks would slow each call."""
    global built
    import functools
    import weakref

    if not sees_modules:
        built = weakref.WeakValueDictionary()
        module.register_module_parameter_registration_hook(see_module)
        module.register_module_module_registration_hook(see_module)
        setstate = module.Module.__setstate__

        @functools.wraps(setstate)
        def __setstate__(self: Any, *args: Any, **kwargs: Any) -> None:
            setstate(self, *args, **kwargs)
            see_module(self)

        # Copies and unpickled modules register nothing.
        module.Module.__setstate__ = __setstate__
        sees_modules.append(True)


def see_module(module: Any, *_: Any) -> None:
    try:
        if len(built) < MODULES_MAX:
            built[id(module)] = module
    except Exception as error:
        _fail(error)


# -- the end ------------------------------------------------------------------------------------------------------


def _conclude(_: Any) -> None:
    """Say why nothing was watched, on rank 0 of a training that did not crash."""
    used = _made["used"] or "ampmon.client.scaler" in sys.modules  # the script imports it itself
    crashed = getattr(sys, "last_value", None) is not None
    ranks = [os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")]
    first = next(filter(None, ranks), "0") == "0"
    if first and not (used or crashed or _said) and _trains():
        say_once(f"nothing was watched in this process: {_why_unused()}")


def _trains() -> bool:
    """Whether this process made an optimizer, as no launcher does: torch then hooks its class's `step`."""
    torch: Any = sys.modules["torch"]
    kinds = [torch.optim.Optimizer]
    while kinds:
        kind = kinds.pop()
        if getattr(kind.step, "hooked", False):
            return True
        kinds += kind.__subclasses__()
    return False


def _why_unused() -> str:
    if not _made["scalers"]:
        return "the script made no GradScaler; fp16 needs one, fp32 and bf16 do not"
    if _made["enabled"]:
        return "the script made a GradScaler, and never called its scale()"
    if _made["refused"]:
        return 'its GradScaler is disabled, as there is no CUDA here (on a CPU: GradScaler("cpu"))'
    return "its GradScaler is disabled (enabled=False), as for bf16; fp16 needs it enabled"
