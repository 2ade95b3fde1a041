"""Lists of mounts, as Linux writes them, tell which file systems are shared between machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampmon.system.mounts import MOUNTS, network_file_system


LISTED = r"""
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
31 21 0:40 / /home rw,relatime shared:7 master:2 - nfs4 nas:/home rw,vers=4.2
32 31 8:2 / /home/scratch rw,relatime - xfs /dev/sdb1 rw
33 21 0:41 / /mnt/my\040files rw - fuse.sshfs me@there: rw
34 21 8:3 / /data rw - ext4 /dev/sdc1 rw
35 21 0:42 / /data rw - lustre mds@tcp:/fs rw
36 21 0:43 / /sandbox rw - fuse.fuse-overlayfs fuse-overlayfs rw
37 21 0:44 / /homes rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ada/.local/share/ampmon/server/ampmon.db", "nfs4"),
        ("/home/scratch/ampmon.db", None),
        ("/mnt/my files/ampmon.db", "fuse.sshfs"),
        ("/data/ampmon.db", "lustre"),
        ("/sandbox/ampmon.db", None),
        ("/homes/ampmon.db", None),
        ("/not/there/yet/ampmon.db", None),
    ],
)
def test_the_nearest_mount_decides(tmp_path: Path, path: str, kind: str | None) -> None:
    """The deepest mount above a path decides, a later mount hides an earlier one, and names may contain blanks."""
    listed = tmp_path / "mountinfo"
    listed.write_text(LISTED)

    assert network_file_system(Path(path), listed) == kind


def test_a_link_is_followed(tmp_path: Path) -> None:
    """The mount of a link's target decides, not that of the link."""
    listed = tmp_path / "mountinfo"
    target = tmp_path / "shared"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    listed.write_text(
        f"1 0 8:1 / / rw - ext4 a rw\n2 1 0:9 / {target.resolve()} rw - nfs nas:/ rw\n"
    )

    assert network_file_system(tmp_path / "link" / "ampmon.db", listed) == "nfs"


def test_where_nothing_is_reported_nothing_is_refused(tmp_path: Path) -> None:
    """Without a list of mounts no path counts as shared; this machine's own list can be read if it has one."""
    assert network_file_system(tmp_path, tmp_path / "missing") is None
    assert not MOUNTS.exists() or network_file_system(Path("/proc")) is None
