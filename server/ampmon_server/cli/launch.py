"""`ampmon run`: replaces itself with the training process, and sets its environment so Python watches all scalers."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ampmon.training.built import STARTUP


USAGE = """\
usage: ampmon run [--no-serve] SCRIPT.py|-m MODULE|COMMAND [ARGUMENT ...]

Run a training script unchanged, and watch every GradScaler that it or a library creates.

  ampmon run train.py --lr 1e-4                        with the `python` on PATH
  ampmon run -m package.train                          the same for a module
  ampmon run torchrun --nproc-per-node 8 train.py      any launcher or program

options:
  --no-serve   start no server if none runs on the data directory
"""
NO_OPTION = "ampmon run: there is no option {}; name the script or command first, then its options"
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""The exit codes of a shell for a command that it cannot run."""
_NEEDED = ("torch", "ampmon")
# `-c` searches the working directory first, and a torch.py there is not torch.
_LOOK = f"""
import sys, importlib.util
sys.path[:] = filter(None, sys.path)
print(*(name for name in {_NEEDED} if importlib.util.find_spec(name) is None))
"""
_LOOK_S = 10.0
_SHELL = "/bin/sh"


def main(words: Sequence[str], start_server: Callable[[], object]) -> int:
    """Replace this process with the command. Return an exit code only if this process is not replaced."""
    serve = True
    words = list(words)
    while words and words[0] in {"--no-serve", "--help", "-h", "--"}:
        option = words.pop(0)
        if option in {"--help", "-h"}:
            sys.stdout.write(USAGE)
            return 0
        if option == "--":
            break
        serve = False
    if not words or (words[0].startswith("-") and words[0] != "-m"):
        _say(NO_OPTION.format(words[0]) if words else USAGE.rstrip())
        return 2
    command = [_python(), *words] if _is_script(words[0]) else words
    program = shutil.which(command[0])
    if program is None:
        _say(f"ampmon run: {command[0]}: command not found; a Python script's name ends in .py")
        return NOT_FOUND
    environment = _given()
    if environment.get("AMPMON_MODE") != "disabled":
        _warn(program, command)
        if serve and (words[0] == "-m" or not _is_script(words[0]) or os.path.exists(words[0])):
            _attempt(start_server)
        environment = watching(environment)
    return _become(program, command, environment)


def _attempt(start_server: Callable[[], object]) -> None:
    """Start the server. If that fails, training starts anyway, and says itself whether it can record."""
    try:
        start_server()
    except Exception as error:
        _say(
            f"ampmon run: cannot start a server ({type(error).__name__}: {error}); the training starts without it"
        )


def _given() -> dict[str, str]:
    """The environment that this process was given. In the C locale, Python adds LC_CTYPE to its own, and to ours."""
    environment = dict(os.environ)
    with suppress(OSError):  # not on Linux
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        if not any(each.startswith(b"LC_CTYPE=") for each in given):
            environment.pop("LC_CTYPE", None)
    return environment


def watching(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Python runs our `sitecustomize` first.

    A relative data directory becomes absolute: the script may change its working directory, as Hydra does.
    """
    changed = dict(environment)
    path, place = environment.get("PYTHONPATH"), environment.get("AMPMON_DIR")
    changed["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([path] if path else [])])
    if place:
        with suppress(OSError):  # somebody deleted the working directory
            changed["AMPMON_DIR"] = os.path.join(os.getcwd(), os.path.expanduser(place))
    return changed


def _is_script(word: str) -> bool:
    return word == "-m" or word.endswith((".py", ".pyw", ".pyz"))


def _python() -> str:
    """The Python that the user means. Ours may belong to a tool's own environment, without torch."""
    return "python" if shutil.which("python") or not shutil.which("python3") else "python3"


def _become(program: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "posix":
            # Python ignores these for itself. Where SIGPIPE is ignored, `cat log | head -1` in a shell script fails.
            for name in ("SIGPIPE", "SIGXFSZ"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            _replace(program, command, environment)
        # On Windows, a parent that waits for this process would not wait for its replacement.
        return subprocess.call([program, *command[1:]], env=dict(environment))
    except OSError as error:
        _say(f"ampmon run: {command[0]}: {error.strerror}")
        return NOT_EXECUTABLE


def _replace(program: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        os.execve(program, list(command), dict(environment))
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without an interpreter in its first line, which shells and launchers run like this.
    os.execve(_SHELL, ["sh", program, *command[1:]], dict(environment))


# -- warnings before the start ------------------------------------------------------------------------------------


def _warn(program: str, command: Sequence[str]) -> None:
    readable = os.access(STARTUP / "sitecustomize.py", os.R_OK)
    if not readable or os.pathsep in str(STARTUP):
        _say(
            f"ampmon run: nothing is watched: {STARTUP} cannot be read by Python; "
            f"install ampmon again, in a folder without {os.pathsep!r} in its name"
        )
    elif os.path.basename(command[0]).startswith("python"):
        options = _options(command[1:])
        if options & set("IES"):
            _say(
                "ampmon run: nothing is watched: Python's options -I, -E and -S ignore what ampmon run sets; "
                "call ampmon.auto() at the top of the script"
            )
        elif missing := _missing(program):
            from ampmon.system.installing import place

            wanted = [shlex.quote(place()) if name == "ampmon" else name for name in missing]
            _say(
                f"ampmon run: {program} has no {' and no '.join(missing)}, so nothing can be watched there: "
                f"{program} -m pip install {' '.join(wanted)}"
            )


def _options(words: Sequence[str]) -> set[str]:
    """The letters of Python's own options, without those that take a value. The last of them may be -m or -c."""
    letters: set[str] = set()
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            continue
        own, *valued = re.split("([cmWX])", word[1:], maxsplit=1)
        letters.update(own)
        if valued[:1] in (["c"], ["m"]):
            break
        if valued[1:] == [""]:
            next(rest, None)
    return letters


def _missing(program: str) -> list[str]:
    """Which of torch and ampmon this Python lacks. Empty if that cannot be found out."""
    try:
        # The Pythons of several environments may link to one program.
        prefix = os.path.dirname(os.path.dirname(os.path.abspath(program)))
        if os.path.samefile(program, sys.executable) and sys.prefix == prefix:
            return [name for name in _NEEDED if find_spec(name) is None]
        looked = subprocess.run(
            [program, "-c", _LOOK],
            capture_output=True,
            text=True,
            timeout=_LOOK_S,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [name for name in _NEEDED if name in looked.stdout.split()]


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()
