"""One file for each framework, which imports it only there."""
