"""Alerts: when a finding is told, to whom, in which words, and how a message leaves. Knows no database and no route."""
