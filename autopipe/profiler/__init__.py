"""Profiler: the time and memory of every layer of a model, and of the links between ranks, are measured."""

from autopipe.profiler.links import fit_link, measure_link, ping_pong
from autopipe.profiler.measured import measure

__all__ = ["fit_link", "measure", "measure_link", "ping_pong"]
