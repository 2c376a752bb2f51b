"""Planner: the stage boundaries, micro-batch size and schedule of the fastest step within memory, with a proof."""
