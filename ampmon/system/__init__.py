"""What ampmon needs of the system: interpreters, file systems, private files, signals, terminals."""
