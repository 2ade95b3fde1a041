"""A gallery for the documentation: ten trainings, each sick in one known way, as reports that open in a browser."""
