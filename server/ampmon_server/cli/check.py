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


def run(arguments: argparse.Namespace) -> int:
    """Print what the preflight finds. Return 0, or 1 for a problem. Raises ConfigurationError if it cannot check."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            f"this needs PyTorch, which is not installed here: {install('torch')}"
        )
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
    except ConfigurationError:
        raise
    except SystemExit as ended:
        said = f" with {ended.code!r}" if isinstance(ended.code, str) else ""
        why = f'the script exits{said}; guard its training code with if __name__ == "__main__"'
        raise ConfigurationError(f"{arguments.target}: {why}") from None
    except Exception:
        failure = traceback.format_exc().rstrip()
        raise ConfigurationError(f"{arguments.target} failed:\n{failure}") from None
    print(json.dumps(found.to_dict(), indent=1) if arguments.json else found)
    return int(found.problem)


def _function(target: str) -> Callable[[], Any]:
    """Import a script as Python runs one without arguments, with its folder on the path. Return its function."""
    if Path(whole := target.rstrip(":")).is_file():
        raise ConfigurationError(f"{target} names no function; write {whole}:FUNCTION")
    path, _, name = target.rpartition(":")
    script = Path(path)
    if not script.is_file() or script.suffix != ".py":
        raise ConfigurationError(f"{target}: no such script; write SCRIPT.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec is not None
    assert spec.loader is not None
    # Registered before it runs, because dataclasses and pickle look a module up by its name.
    module = sys.modules[script.stem] = importlib.util.module_from_spec(spec)
    sys.argv = [path]  # for a script that reads its arguments as it is imported
    sys.path.insert(0, str(script.parent.resolve()))
    spec.loader.exec_module(module)
    found: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(found):
        raise ConfigurationError(f"{target}: {script} has no function {name!r}")
    return found
