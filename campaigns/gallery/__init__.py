"""The documentation's gallery: reports of ten trainings, each with one known fault."""
