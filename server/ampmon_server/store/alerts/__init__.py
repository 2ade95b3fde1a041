"""Stores the findings of runs, their alerts, mutes, and the messages to targets."""
