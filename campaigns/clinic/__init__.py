"""The clinic: small real trainings, each healthy or with one known fault, recorded, delivered, stored and diagnosed.

`python -m campaigns.clinic` runs all of them and `test_clinic.py` a few. Nothing is faked.
"""
