"""Copies runs to other trackers as their records are stored: TensorBoard event files and MLflow."""
