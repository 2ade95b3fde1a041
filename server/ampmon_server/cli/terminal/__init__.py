"""Commands that list, show, follow and change runs in a terminal."""
