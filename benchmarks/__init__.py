"""Measures the cost of monitoring against the stock scaler. Run `python -m benchmarks` or `make bench`."""
