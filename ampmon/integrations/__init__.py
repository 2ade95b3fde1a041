"""Integrations with training frameworks. Each framework is imported only in its own module."""
