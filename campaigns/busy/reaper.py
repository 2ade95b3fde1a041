"""Runs a command and waits for every process it leaves behind, so that their processor time is counted with it.

A sender leaves its trainer's process tree on purpose; without this its time goes to nobody who asks. Linux only:
elsewhere the command runs as it is.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys


PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """The exit code of the command; 128 and the signal's number where a signal ended it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(sys.argv[1:])
    code = 0
    try:
        while True:  # at once: a process that ended must not look alive to the one that watches it
            pid, status = os.wait()
            if pid == command.pid:
                code = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
