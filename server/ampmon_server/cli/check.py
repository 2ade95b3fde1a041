"""``ampmon check``: runs a preflight on what a function of a script returns. Needs torch but no server."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ampmon.errors import ConfigurationError
from ampmon.system.installing import install
from ampmon_server.cli.exits import CANNOT


DESCRIPTION = (
    "Compare a model's gradients in fp16, fp32 and bf16 on one batch, before a run: where fp16 harms them, and which "
    "loss scale or modules in fp32 cure it. It imports the script, so guard its training code with if __name__ == "
    '"__main__". It exits with 0, with 1 if you have to change something, or with 2 if it cannot check.'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument(
        "target",
        metavar="SCRIPT.py:FUNCTION",
        help="a function without arguments that returns (model, batch, loss_fn), as ampmon.preflight takes them",
    )
    parser.add_argument(
        "--init-scale",
        type=float,
        default=65536.0,
        metavar="SCALE",
        help="the loss scale to try first (%(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print what the preflight finds. Return 0, 1 for a problem, or 2 if the script or the model cannot be used."""
    if importlib.util.find_spec("torch") is None:
        return _cannot(f"this needs PyTorch, which is not installed here: {install('torch')}")
    from ampmon import preflight

    try:
        with redirect_stdout(sys.stderr):  # keep the script's output apart from the result
            made = _function(arguments.target)()
            if not (isinstance(made, tuple) and len(made) == 3):
                raise ConfigurationError(
                    f"{arguments.target}: it has to return (model, batch, loss_fn)"
                )
            if sys.stderr.isatty():
                print("running passes in fp32, fp16 and bf16 ...")
            found = preflight(*made, init_scale=arguments.init_scale)
    except ConfigurationError as why:
        return _cannot(str(why))
    except Exception:
        return _cannot(f"{arguments.target} failed:\n{traceback.format_exc().rstrip()}")
    print(json.dumps(found.to_dict(), indent=1) if arguments.json else found)
    return int(found.problem)


def _function(target: str) -> Callable[[], Any]:
    """Import a script as Python runs one, with its folder on the path. Return its function."""
    path, _, name = target.rpartition(":")
    script = Path(path)
    if not script.is_file() or script.suffix != ".py":
        raise ConfigurationError(f"{target}: no such script; write SCRIPT.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[script.stem] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.parent.resolve()))
    spec.loader.exec_module(module)
    found: Callable[[], Any] | None = getattr(module, name, None)
    if found is None:
        raise ConfigurationError(f"{target}: {script} has no function {name!r}")
    return found


def _cannot(why: str) -> int:
    print(f"ampmon check: {why}", file=sys.stderr)
    return CANNOT
