"""Diagnoses a run: what is wrong, why, and which code fixes it. Pure: a case in, findings out."""
