"""Graphs that other planners profiled, read from their own files."""

from autopipe.planner.imported.reading import FORMATS, read_graph

__all__ = ["FORMATS", "read_graph"]
