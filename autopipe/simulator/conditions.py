"""What a simulated run assumes beside the times of stages and links."""

from autopipe.documents.conditions import Conditions

__all__ = ["IDEAL", "Conditions"]

IDEAL = Conditions()
