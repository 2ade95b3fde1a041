"""The soak: trainers, senders and servers are killed at random while answers get lost; then what is stored is counted.

`python -m campaigns.soak` is the long form and `test_soak.py` the short one. Fakes nothing but the network's faults.
"""
