"""The first `sitecustomize` that Python finds under `ampmon run`. It then runs the one that it hides.

Any Python may run this file, however old, so it uses only syntax that all of them parse.
"""

import os
import sys


if sys.version_info >= (3, 10):  # noqa: UP036 - others come by too
    try:
        import ampmon_startup  # type: ignore[import-not-found]  # beside this file, which is on the path

        ampmon_startup.install()
    except Exception as error:
        sys.stderr.write("ampmon: not watching this process: " + str(error) + "\n")

_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [each for each in sys.path if each != _folder]
_ours = sys.modules.pop(__name__)
try:
    __import__(__name__)
except ImportError as error:
    if getattr(error, "name", None) != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, _ours)
