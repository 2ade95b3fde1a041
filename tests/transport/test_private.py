"""ampmon rejects files and folders that others own, can write to or have linked, and makes its own private."""

from __future__ import annotations

import os
import re
import resource
import stat
from pathlib import Path

import pytest

from ampmon import sender
from ampmon.config import DEFAULT_URL
from ampmon.errors import ConfigurationError, SpoolError, Unreachable
from ampmon.sender import election
from ampmon.system import private
from ampmon.transport import HttpTransport
from ampmon_server.client import ClientError
from ampmon_server.client.answering import answering
from ampmon_server.http.address import address_written
from ampmon_server.http.auth.keys import Keys
from ampmon_server.settings import Settings
from ampmon_server.store import Store, Unusable
from attempts import Attempt


SOMEBODY = 54_321


def make_writable(path: Path) -> None:
    path.chmod(path.stat().st_mode | stat.S_IWOTH)


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A directory or file of another user is rejected with the owner's name. root's is accepted."""
    (tmp_path / "token").touch(mode=0o600)
    owner = f"belongs to user {tmp_path.owner()}"
    if os.geteuid() == 0:
        os.chown(tmp_path, SOMEBODY, SOMEBODY)
        os.chown(tmp_path / "token", SOMEBODY, SOMEBODY)
        owner = f"belongs to user {SOMEBODY}"
    stranger = SOMEBODY + 1
    with pytest.raises(private.NotPrivate, match=owner):
        private.directory(tmp_path, "server", uid=stranger)
    with pytest.raises(private.NotPrivate, match=owner):
        private.read(tmp_path / "token", uid=stranger)
    private.directory(Path("/"), uid=stranger)


@pytest.mark.parametrize("below", ["", "spool", "server", "senders"])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, below: str) -> None:
    """Trainer, sender and server reject a directory that others can write to, and name the command that fixes it."""
    folder = tmp_path / "data"
    for name in ("spool", "server", "senders"):
        private.directory(folder, name)
    make_writable(folder / below)
    settings = Settings(data_directory=folder)
    remedy = f"chmod go-w {folder / below}".rstrip("/")
    if below in {"", "spool"}:
        with pytest.raises(SpoolError, match=remedy):
            Attempt(folder)
    if below in {"", "server"}:
        with pytest.raises(ConfigurationError, match=remedy):
            Keys.load(settings.data_directory)
    if below in {"", "senders"}:
        with pytest.raises(private.NotPrivate, match=remedy):
            election.elect(folder)
        sender.ensure_running(folder)  # as ever, it raises nothing
    assert not list(folder.glob("spool/*"))
    assert not list(folder.glob("token"))


def test_a_planted_token_is_nobody_s(tmp_path: Path) -> None:
    """A token that others can write is neither accepted nor sent."""
    token = tmp_path / "token"
    token.write_text("x" * 43)
    make_writable(token)
    with pytest.raises(ConfigurationError, match="chmod go-w"):
        Keys.load(tmp_path)
    with pytest.raises(Unreachable, match="chmod go-w"):
        HttpTransport(DEFAULT_URL, token_file=token).send(b"")
    with (
        pytest.raises(ClientError, match="chmod go-w"),
        answering(url="http://127.0.0.1:9", data_dir=tmp_path),
    ):
        pass


def test_no_planted_link_is_followed(tmp_path: Path) -> None:
    """Symbolic links in place of ampmon's files are not followed, and their target stays unchanged."""
    folder = tmp_path / "data"
    mine = tmp_path / "mine"
    mine.write_text("precious" * 8)
    server = private.directory(folder, "server")
    settings = Settings(data_directory=folder)
    for name in ("address", f".address.{os.getpid()}", "ampmon.db"):
        (server / name).symlink_to(mine)
    with address_written(settings.address_file, "http://127.0.0.1:1"):
        assert (server / "address").read_text() == "http://127.0.0.1:1\n"
    with pytest.raises(Unusable, match="symbolic link"):
        Store.open(settings)
    (server / "ampmon.db.lock").unlink()
    (server / "ampmon.db.lock").symlink_to(mine)
    with pytest.raises(Unusable, match="symbolic link"):
        Store.open(settings)
    (folder / "token").symlink_to(mine)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        Keys.load(folder)
    assert mine.read_text() == "precious" * 8


def test_a_file_that_does_not_fit_on_the_disk_is_named(tmp_path: Path) -> None:
    """Where a server's address cannot be written, the error names the file, and the old one stays."""
    path = tmp_path / "address"
    path.write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with pytest.raises(OSError, match=re.escape(str(path))):
            private.replace(path, b"after", durable=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"address": b"before"}


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """The data directory may be a link, but `server` in it may not."""
    real = private.directory(tmp_path / "real", "elsewhere")
    (tmp_path / "link").symlink_to(real)
    private.directory(tmp_path / "link", "spool")
    (real / "server").symlink_to(tmp_path)
    with pytest.raises(private.NotPrivate, match="symbolic link"):
        private.directory(tmp_path / "link", "server")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe in place of a token is read without waiting and is rejected."""
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(ConfigurationError, match="damaged"):
        Keys.load(tmp_path)


def test_the_database_is_its_owner_s_in_a_folder_made_before(tmp_path: Path) -> None:
    """Database, WAL and lock are created with mode 0600, whatever the umask and the folder's mode."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        with_log = Store.open(Settings(database_url=f"sqlite:///{folder}/own.db"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        with_log.close()
    finally:
        os.umask(before)
    assert set(modes) >= {"own.db", "own.db-wal", "own.db.lock"}
    assert set(modes.values()) == {0o600}


def test_a_group_of_one_s_own_may_write(tmp_path: Path) -> None:
    """A group-writable directory is accepted only if the group is the user's alone."""
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o775)
    (group,) = {os.getegid()}
    names = private._is_own_group(group, os.geteuid())
    if names:
        private.directory(own)
    if os.geteuid() == 0:
        os.chown(own, 0, SOMEBODY)
        names = False
    if not names:
        with pytest.raises(private.NotPrivate, match="chmod go-w"):
            private.directory(own)
