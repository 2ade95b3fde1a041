"""The ampmon service: stores the records of training processes and shows them on a page."""
