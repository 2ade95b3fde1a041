"""Finds the script's git commit, without running git, and the versions of loaded packages."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path
from types import ModuleType


_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(r"ref: (refs/[^\x00-\x20]+)")
_FILE_BYTES_MAX = 2**22
_PARENTS_MAX = 32


def git_commit(start: Path | None = None) -> str:
    """The commit checked out at ``start`` (default: the script, else the working directory), or "".

    Reads a few small files. Runs no program and never raises.
    """
    try:
        return _commit_of(start or _script_directory())
    except (OSError, ValueError, RuntimeError):
        return ""


def _script_directory() -> Path:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else Path.cwd()


def _commit_of(start: Path) -> str:
    for directory in [start, *start.parents][:_PARENTS_MAX]:
        git = directory / ".git"
        if git.is_file():  # a worktree or a submodule
            git = directory / _read(git).removeprefix("gitdir:").strip()
        if (git / "HEAD").is_file():
            return _resolve_head(git)
    return ""


def _resolve_head(git: Path) -> str:
    head = _read(git / "HEAD").strip()
    if match := _REF.fullmatch(head):
        return _resolve_ref(git, match[1])
    return head if _COMMIT.fullmatch(head) else ""


def _resolve_ref(git: Path, ref: str) -> str:
    common = git / _read(git / "commondir").strip() if (git / "commondir").is_file() else git
    for directory in (git, common):
        loose = directory / ref
        if loose.is_file() and _COMMIT.fullmatch(commit := _read(loose).strip()):
            return commit
    packed = _read(common / "packed-refs")
    match = re.search(rf"^([0-9a-f]{{40,64}}) {re.escape(ref)}$", packed, re.MULTILINE)
    return match[1] if match else ""


def _read(path: Path) -> str:
    if not path.is_file():  # a pipe would block
        return ""
    with path.open("rb") as file:
        return file.read(_FILE_BYTES_MAX).decode("utf-8", "replace")


def versions() -> dict[str, str]:
    """The versions of Python and ampmon, and of numpy, torch and CUDA if they are loaded. Loads nothing."""
    found = {"python": platform.python_version(), "ampmon": _installed_version()}
    for name in ("numpy", "torch"):
        if module := sys.modules.get(name):
            found[name] = _text(getattr(module, "__version__", ""))
    torch_version: ModuleType | None = sys.modules.get("torch.version")
    for name in ("cuda", "hip"):
        found[name] = _text(getattr(torch_version, name, ""))
    return {name: version for name, version in found.items() if version}


def _installed_version() -> str:
    try:
        return importlib.metadata.version("ampmon")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _text(version: object) -> str:
    return "".join(c for c in str(version or "") if c.isprintable())[:256]
