"""Preflight: measures before a run how fp16 would change a model's gradients, and finds proven cures.

Owns the passes in fp32, fp16 and bf16, their comparison and the verdict. Changes nothing. Depends on no scaler or run.
"""

from ampmon.checking.cures import preflight
from ampmon.checking.result import Preflight


__all__ = ["Preflight", "preflight"]
