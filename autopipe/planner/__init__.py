"""Planner: the stage boundaries, micro-batch size and schedule of the fastest step within memory, with a proof."""

from autopipe.planner.any_order import plan
from autopipe.planner.edited import rescored
from autopipe.planner.evaluation import evaluate
from autopipe.planner.programme import write_programme
from autopipe.planner.request import Request
from autopipe.planner.trade_offs import TradeOff, trade_offs
from autopipe.planner.writing import simulate_plan

__all__ = [
    "Request",
    "TradeOff",
    "evaluate",
    "plan",
    "rescored",
    "simulate_plan",
    "trade_offs",
    "write_programme",
]
