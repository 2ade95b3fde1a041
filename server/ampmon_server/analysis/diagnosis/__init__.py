"""From a run's numbers to what is wrong with it, why, and what to write instead. Pure: a case in, findings out."""

from __future__ import annotations

from ampmon_server.analysis.diagnosis.diagnose import Diagnosis, diagnose
from ampmon_server.analysis.diagnosis.effective import EffectiveTraining, effective


__all__ = ["Diagnosis", "EffectiveTraining", "diagnose", "effective"]
