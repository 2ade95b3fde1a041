"""The cells of the suite's large matrices that `make test` leaves out. `make test-campaigns` runs them."""
