"""Preflight: what fp16 would do to a model's gradients, measured at its weights before a run, and proven cures.

Owns the passes in fp32, fp16 and bf16, their comparison and the verdict. Changes nothing. Knows no scaler and no run.
"""

from ampmon.checking.cures import preflight
from ampmon.checking.result import ModuleCheck, Preflight


__all__ = ["ModuleCheck", "Preflight", "preflight"]
