"""Stages: a recorded model is cut into ordinary modules, one per stage, under the original names."""
