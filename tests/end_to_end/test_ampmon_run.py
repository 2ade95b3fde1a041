"""`ampmon run` with real processes and the environment it sets. `make test-campaigns` covers torchrun's ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

import ampmon
import ampmon_server
from ampmon.config import server_address
from ampmon.system.installing import place
from ampmon.training.built import STARTUP
from waiting import wait_for


AMPMON = [sys.executable, "-m", "ampmon_server.cli", "run"]
SEEN = """
import json, os, sys
print(json.dumps({
    "path": [each for each in sys.path if "startup" in each], "argv": sys.argv, "name": __name__, "pid": os.getpid(),
    "pythonpath": os.environ.get("PYTHONPATH"), "loaded": [*sys.modules],
    "finders": [type(each).__name__ for each in sys.meta_path],
}))
"""


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `ampmon run` to its end. The `python` on PATH is that of the tests."""
    return subprocess.run(
        [*AMPMON, *words],
        capture_output=True,
        text=True,
        env={**on_path(), **environment},
        check=False,
        stdin=subprocess.DEVNULL,
    )


def on_path() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_a_script_finds_itself_as_it_would_without(tmp_path: Path) -> None:
    """The script gets its own arguments, `__name__` and sys.path, and ampmon, torch and numpy are not imported."""
    script = tmp_path / "train.py"
    script.write_text(SEEN)
    plain = json.loads(run("sh", "-c", f"exec {sys.executable} -S {script}").stdout)["loaded"]
    seen = json.loads(run(str(script), "--lr", "1e-4", PYTHONPATH="/of/mine").stdout)
    assert seen["argv"] == [str(script), "--lr", "1e-4"]
    assert seen["name"] == "__main__"
    assert seen["path"] == []
    assert seen["pythonpath"] == f"{STARTUP}{os.pathsep}/of/mine"
    assert seen["finders"].count("Finder") == 1
    added = {each.partition(".")[0] for each in {*seen["loaded"]} - {*plain}}
    assert {"torch", "ampmon", "ampmon_server", "numpy", "msgspec"} & added == set()
    assert {"ampmon_startup", "sitecustomize"} <= {*seen["loaded"]}
    module = json.loads(run("-m", "train", "x", PYTHONPATH=str(tmp_path)).stdout)
    assert module["argv"] == [str(script), "x"]


def test_the_command_takes_the_place_of_the_process() -> None:
    """The command takes over the pid, the standard streams and the exit code. An unknown program exits with 127."""
    with subprocess.Popen([*AMPMON, "sh", "-c", "echo $$; exit 7"], stdout=subprocess.PIPE) as ran:
        assert ran.stdout is not None
        assert int(ran.stdout.read()) == ran.pid
        assert ran.wait() == 7
    missing = run("no-such-program", "x")
    assert (missing.returncode, missing.stdout) == (127, "")
    assert "no-such-program: command not found" in missing.stderr
    assert run().returncode == 2
    assert run("--help").stdout.startswith("usage: ampmon run")
    unknown = run("--serve", "train.py")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("ampmon run: there is no option --serve;")


def test_a_script_without_an_interpreter_runs_in_a_shell(tmp_path: Path) -> None:
    """A shell script needs no `#!`, as in a shell."""
    script = tmp_path / "train"
    script.write_text('echo "$0" "$@"; exit 5')
    script.chmod(0o700)
    done = run(str(script), "a", "b c")
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{script} a b c\n", "")


def test_a_shell_script_s_pipes_end_as_they_would_without() -> None:
    """A program whose reader is gone is ended by SIGPIPE, which Python ignores for itself."""
    # Without the bits of 32 and 33, which glibc keeps for itself: Python 3.13's subprocess ignores them.
    ignored = "echo $((0x$(grep SigIgn /proc/self/status | cut -f 2) & 0x7fffffff))"
    script = 'yes | head -1; echo "${PIPESTATUS[0]}"; ' + ignored
    plain = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    done = run("bash", "-c", script)
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)
    assert "y\n141\n" in done.stdout


def test_a_script_that_changes_its_folder_records_where_the_server_looks(tmp_path: Path) -> None:
    """A relative data directory is meant from where `ampmon run` is called."""
    look = ["sh", "-c", 'cd / && echo "$AMPMON_DIR"']
    done = run(*look, AMPMON_DIR="of/mine")
    assert Path(done.stdout.strip()) == Path.cwd() / "of" / "mine"
    assert run(*look, AMPMON_DIR=str(tmp_path)).stdout == f"{tmp_path}\n"


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize("locale", [{}, {"LC_CTYPE": "C.UTF-8"}])
def test_the_locale_is_the_users(locale: dict[str, str]) -> None:
    """In the C locale, Python sets LC_CTYPE for itself. The command gets what the user had."""
    environment = {
        name: value for name, value in on_path().items() if name[:3] not in {"LAN", "LC_"}
    }
    done = subprocess.run(
        [*AMPMON, "--no-serve", "sh", "-c", 'echo "$LC_CTYPE"'],
        capture_output=True,
        text=True,
        env={**environment, **locale},
        check=True,
    )
    assert done.stdout.strip() == locale.get("LC_CTYPE", "")


def test_disabled_it_is_the_plain_command() -> None:
    """With AMPMON_MODE=disabled the environment is unchanged."""
    done = run(sys.executable, "-c", SEEN, AMPMON_MODE="disabled")
    seen = json.loads(done.stdout)
    assert seen["pythonpath"] is None
    assert "ampmon_startup" not in seen["loaded"]
    assert done.stderr == ""


def test_a_python_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    """A Python that ignores PYTHONPATH or lacks torch gets a warning, and its script still runs."""
    for options in (["-I"], ["-S"], ["-uE"], ["-W", "ignore", "-I"], ["-Xdev", "-E"]):
        done = run("python", *options, "-c", "print(1)")
        assert "nothing is watched: Python's options -I, -E and -S" in done.stderr
        assert done.stdout == "1\n"
    for words in (["-cprint(1) # IES"], ["-Wignore", "-mtimeit", "-n1", "-r1", "-S"]):
        assert "-S ignore" not in run("python", *words).stderr
    venv.create(tmp_path / "bare", with_pip=False)
    bin_ = tmp_path / "bare" / "bin"
    script = tmp_path / "train.py"
    script.write_text("print(2)")
    done = run(str(script), PATH=f"{bin_}{os.pathsep}{os.environ['PATH']}")
    assert done.stdout == "2\n"
    assert f"{bin_}/python has no torch and no ampmon" in done.stderr
    assert f"-m pip install torch {place()}\n" in done.stderr


def test_a_broken_installation_runs_the_script(tmp_path: Path) -> None:
    """If the folder for PYTHONPATH is missing, one line says so and the script still runs."""
    copy = tmp_path / "copy" / "ampmon"
    shutil.copytree(Path(ampmon.__file__).parent, copy, ignore=shutil.ignore_patterns("startup"))
    program = "import sys; from ampmon_server.cli import launch; sys.exit(launch.main(sys.argv[1:], bool))"
    server = Path(ampmon_server.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program, sys.executable, "-c", "print(3)"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{copy.parent}{os.pathsep}{server}"},
        cwd=tmp_path,
        check=True,
    )
    assert done.stdout == "3\n"
    assert re.fullmatch(r"ampmon run: nothing is watched: .* cannot be read.*\n", done.stderr)


def customized(folder: Path, python: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run Python under `ampmon run` with these modules on its path too."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    code = "import sys; print([type(each).__name__ for each in sys.meta_path].count('Finder'))"
    return run(python, "-c", code, PYTHONPATH=str(folder))


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    """The user's sitecustomize, which ours hides, still runs under its name. Its errors are shown as usual."""
    done = customized(tmp_path, sys.executable, sitecustomize="print(__name__, __file__)")
    line = f"sitecustomize {tmp_path / 'sitecustomize.py'}"
    assert done.stdout.splitlines() == [line, line, "1"]  # the first by the command's own Python
    done = customized(tmp_path, sys.executable, sitecustomize="import nothing_of_that_name")
    assert done.stdout == "1\n"
    assert "Error in sitecustomize" in done.stderr
    assert "nothing_of_that_name" in done.stderr


def test_a_sitecustomize_that_runs_no_other_does_not_keep_ours_out(tmp_path: Path) -> None:
    """If an earlier sitecustomize hides ours and runs no other, as OpenTelemetry's does, our `usercustomize` runs."""
    python = os.path.realpath(sys.executable)  # in a virtual environment there is no usercustomize
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("")
    (tmp_path / "usercustomize.py").write_text("print(__name__)")
    path = os.pathsep.join(map(str, (folder, STARTUP, tmp_path)))
    code = "import sys; print('ampmon_startup' in sys.modules)"
    done = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
    )
    assert done.stdout.splitlines() == ["usercustomize", "True"]


def servers(directory: Path) -> list[int]:
    """The pids of the background servers on a data directory, which docs/run.md stops by `stop-when-idle`."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # another process that has just ended
            words = file.read_bytes().split(b"\0")
            if b"--stop-when-idle" in words and str(directory).encode() in words:
                found.append(int(file.parent.name))
    return found


def online(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "AMPMON_MODE": "online"}


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are found by /proc")
def test_a_server_is_started_where_none_runs(data_directory: Path) -> None:
    """The server runs detached, outlives the command, and uses another port if 8267 is taken.

    A command that runs while it starts, or later, does not start another.
    """
    with socket.socket() as taken:
        with suppress(OSError):  # or another process holds the port already
            taken.bind(("127.0.0.1", 8267))
            taken.listen()
        assert run("true", **online({})).returncode == 0
        try:
            (pid,) = wait_for(lambda: servers(data_directory), "the server")
            assert run("true", **online({})).returncode == 0
            assert servers(data_directory) == [pid]
            address = wait_for(lambda: server_address(data_directory), "the address of the server")
            assert not address.endswith(":8267")
            assert os.getpgid(pid) == pid
            again = run("true", **online({}))
            assert (again.returncode, again.stderr) == (0, "")
            assert servers(data_directory) == [pid]
        finally:
            for each in servers(data_directory):
                os.kill(each, signal.SIGTERM)
        wait_for(lambda: not servers(data_directory), "the end of the server")


@pytest.mark.parametrize(
    ("option", "environment"),
    [
        ("--no-serve", {}),
        ("--", {"AMPMON_URL": "http://127.0.0.1:9"}),
        ("--", {"RANK": "1", "WORLD_SIZE": "2"}),
        ("--", {"AMPMON_MODE": "offline"}),
    ],
)
def test_no_server_is_started_where_none_is_wanted(
    data_directory: Path, option: str, environment: dict[str, str]
) -> None:
    """No server starts with --no-serve, a server address, another rank, offline mode or a missing script."""
    assert run(option, "true", **{**online({}), **environment}).returncode == 0
    assert run("misspelt.py", **online({})).returncode == 2
    assert not (data_directory / "server").exists()


def test_a_server_that_cannot_start_promises_nothing(tmp_path: Path) -> None:
    """If the data directory cannot be used, one line says why no server starts, and not that records wait."""
    (tmp_path / "file").touch()
    done = run("echo", "trained", **online({"AMPMON_DIR": str(tmp_path / "file" / "data")}))
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert re.fullmatch(
        r"ampmon run: cannot start a server \(.*\); the training starts without it\n", done.stderr
    )
