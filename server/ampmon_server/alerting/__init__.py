"""Alerts: when a finding is sent, to whom, in which words, and how a message leaves. Knows no database and no route."""
