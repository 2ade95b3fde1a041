"""Sampled gradients and activations."""
