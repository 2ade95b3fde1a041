"""The files that a browser loads, and the pages made from them."""
