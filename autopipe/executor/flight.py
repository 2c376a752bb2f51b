"""A micro-batch in flight on a stage: what is kept from its forward to its backward."""

from torch import Tensor
from torch.autograd.graph import GradientEdge

from autopipe.executor.entry import Entry
from autopipe.stages.split_backward import Deferred


class Flight:
    """One micro-batch in flight on one stage: what its backward needs."""

    def __init__(self) -> None:
        self.entry = Entry()
        self.admitted: tuple[str, ...] = ()
        self.edges: dict[str, GradientEdge] = {}
        self.loss: Tensor | None = None
        self.deferred: Deferred | None = None
