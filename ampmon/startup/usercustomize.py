"""The same as `sitecustomize` here, where another one stands before that and runs no other, as OpenTelemetry's does."""

import sys


try:
    import ampmon_startup  # type: ignore[import-not-found]  # beside this file, which is on the path
except Exception as error:
    sys.stderr.write(f"ampmon: not watching this process: {type(error).__name__}: {error}\n")
else:
    ampmon_startup.install()
    ampmon_startup.give_way(__name__)
