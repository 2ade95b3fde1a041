"""Stores incoming batches, in one transaction each or several in one."""
