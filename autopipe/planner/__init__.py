"""Planner: the stage boundaries, micro-batch size and schedule of the fastest step within memory, with a proof."""

from autopipe.planner.any_order import plan
from autopipe.planner.evaluation import evaluate
from autopipe.planner.score import simulate_plan

__all__ = ["evaluate", "plan", "simulate_plan"]
