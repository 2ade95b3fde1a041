"""Gives the campaigns' own tests the fixtures of the suite: `make test-campaigns` runs them."""

from conftest import documentation, empty_database, new_server, postgres, server
from isolated import data_directory


__all__ = ["data_directory", "documentation", "empty_database", "new_server", "postgres", "server"]
