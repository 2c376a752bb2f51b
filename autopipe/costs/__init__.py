"""Costs: time and memory of any interval of layers, from a profile."""
