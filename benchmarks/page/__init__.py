"""What the page costs a reader: from an update to its pixels, opening a long run, and staying open."""
