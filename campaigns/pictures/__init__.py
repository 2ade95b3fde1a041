"""`make screenshots`: every view of the page, of real trainings, as pictures to look at; the best are in docs/img."""
