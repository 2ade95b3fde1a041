"""Runs `sitecustomize` here if another one comes before it and runs no other, as OpenTelemetry's does."""

import os


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sitecustomize.py")) as file:
    exec(file.read())
