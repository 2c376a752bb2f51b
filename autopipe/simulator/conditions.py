"""What a simulated run assumes beside the times of stages and links."""

import msgspec


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The executor's own costs, whether transfers overlap computation, and which ranks share a machine's network.

    Attributes
    ----------
    action_ns : int
        What the executor adds to every action.
    message_ns : int
        How long starting a message keeps its sender from computing.
    overlap : bool
        Whether a rank computes while what it sends occupies the link; without, it waits for that long.
    nodes : tuple of int
        The machine of each rank. Between two machines messages share what leaves the one and what enters the
        other; () if every ordered pair of ranks has a link of its own.
    """

    action_ns: int = 0
    message_ns: int = 0
    overlap: bool = True
    nodes: tuple[int, ...] = ()


IDEAL = Conditions()
