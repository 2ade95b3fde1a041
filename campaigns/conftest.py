"""Gives the campaigns' own tests the fixtures of the suite: `make test-campaigns` runs them."""

from conftest import data_directory, empty_database, new_server, postgres, server


__all__ = ["data_directory", "empty_database", "new_server", "postgres", "server"]
