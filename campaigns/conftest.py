"""Gives the campaigns' own tests the fixtures of the suite: `make test-campaigns` runs them."""

from conftest import empty_database, new_server, postgres, server
from isolated import data_directory


__all__ = ["data_directory", "empty_database", "new_server", "postgres", "server"]
