"""Access to the system: interpreters, file systems, private files, signals, terminals."""
