"""Profiler: time and memory of every layer of a model, and of the links between ranks, are measured or estimated."""

from autopipe.profiler.analytic import estimate
from autopipe.profiler.links import fit_link, measure_link, ping_pong
from autopipe.profiler.measured import measure

__all__ = ["estimate", "fit_link", "measure", "measure_link", "ping_pong"]
