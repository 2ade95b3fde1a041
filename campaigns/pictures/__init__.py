"""`make screenshots`: pictures of every view of the page with real trainings. The best are in docs/img."""
