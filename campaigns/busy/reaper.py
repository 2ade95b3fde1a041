"""Runs a command and waits for every process it leaves behind, so that their processor time is counted.

A sender detaches from its trainer's process tree on purpose, so its time would otherwise be lost. On other systems
than Linux this waits only for the command.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys


PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Return the command's exit code, or 128 plus the signal number if a signal ended it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(sys.argv[1:])
    code = 0
    try:
        while True:  # reap immediately: a zombie looks alive to the process that watches it
            pid, status = os.wait()
            if pid == command.pid:
                code = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
