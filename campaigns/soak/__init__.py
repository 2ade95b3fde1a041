"""The soak: kills trainers, senders and servers at random while answers get lost, then counts what is stored.

`python -m campaigns.soak` is the long form and `test_soak.py` the short one. Only the network's faults are fake.
"""
