"""What monitoring costs, measured against the stock scaler: run as `python -m benchmarks`, or `make bench`."""
