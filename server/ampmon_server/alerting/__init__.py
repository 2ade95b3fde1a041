"""Alerts: when to send a finding, to whom, in which words, and how to deliver it. Uses no database and no route."""
