"""What a run is, as arrays, cells and words. Pure: no database, no HTTP, no charts."""
