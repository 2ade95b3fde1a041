"""Shares the suite's fixtures with the campaigns' own tests, which `make test-campaigns` runs."""

from conftest import documentation, empty_database, new_server, postgres, server
from isolated import data_directory


__all__ = ["data_directory", "documentation", "empty_database", "new_server", "postgres", "server"]
