"""Connects the store to SQLite and PostgreSQL."""
