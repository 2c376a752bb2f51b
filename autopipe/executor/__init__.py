"""Executor: runs a schedule's actions on stages, micro-batch by micro-batch."""
