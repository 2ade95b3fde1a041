"""Finds known mistakes in a training loop from its scaler's calls. Reports each once and never raises."""
