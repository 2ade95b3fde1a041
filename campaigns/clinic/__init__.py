"""The clinic: small real trainings, each sick in one known way or healthy, recorded, delivered, stored and diagnosed.

`python -m campaigns.clinic` is the long form and `test_clinic.py` the short one. Fakes nothing.
"""
