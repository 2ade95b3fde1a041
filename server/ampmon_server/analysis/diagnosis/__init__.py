"""Diagnoses a run: what is wrong, why, and which code fixes it. Pure: a case in, findings out."""

from __future__ import annotations

from ampmon_server.analysis.diagnosis.diagnose import Diagnosis, diagnose
from ampmon_server.analysis.diagnosis.effective import EffectiveTraining, effective


__all__ = ["Diagnosis", "EffectiveTraining", "diagnose", "effective"]
