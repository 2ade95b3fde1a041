"""Activations, on request: hooks that see module outputs and the gradients that come back to them.

Owns which modules are hooked, when, and what is gathered in one iteration. Depends on no scaler and no optimizer.
"""
