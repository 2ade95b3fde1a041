"""The tables, and how a database comes to have them."""
