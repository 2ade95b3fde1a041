"""Export of runs to files, and import of exports and of other tools' logs."""
