"""A run's data as arrays, aggregate cells and text. Pure: no database, no HTTP, no charts."""
