"""What a step costs beside the times of stages and links: the executor's own part of actions and messages."""

import msgspec

_SECOND = 1_000_000_000


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The executor's own costs, whether transfers overlap computation, and which ranks share a machine's network.

    Attributes
    ----------
    action_ns : int
        What the executor adds to every action.
    message_ns, message_bytes_per_s : int, and int or None
        How long starting a message keeps its sender from computing: a time for each, and a rate at which its bytes
        are handed over (None: at once).
    arrival_ns, arrival_bytes_per_s : int, and int or None
        The same of its receiver: posting, waiting for what is there already, and what moving the bytes takes of the
        receiver's processor.
    overlap : bool
        Whether a rank computes while what it sends occupies the link; without, it waits for that long.
    nodes : tuple of int
        The machine of each rank. Between two machines messages share what leaves the one and what enters the
        other; () if every ordered pair of ranks has a link of its own.
    """

    action_ns: int = 0
    message_ns: int = 0
    message_bytes_per_s: int | None = None
    arrival_ns: int = 0
    arrival_bytes_per_s: int | None = None
    overlap: bool = True
    nodes: tuple[int, ...] = ()

    def sending_ns(self, size_bytes: int) -> int:
        """Return how long starting a message of ``size_bytes`` keeps its sender from computing, without the link."""
        return self.message_ns + _moving_ns(size_bytes, self.message_bytes_per_s)

    def taking_ns(self, size_bytes: int) -> int:
        """Return how long a message of ``size_bytes`` keeps its receiver from computing."""
        return self.arrival_ns + _moving_ns(size_bytes, self.arrival_bytes_per_s)

    def faults(self) -> tuple[str, ...]:
        """Return what no conditions can be: negative times, rates of nothing."""
        times = ("action_ns", "message_ns", "arrival_ns")
        rates = ("message_bytes_per_s", "arrival_bytes_per_s")
        found = [f"{name} is {getattr(self, name)}, below 0" for name in times if getattr(self, name) < 0]
        found += [
            f"{name} is {rate}, below 1" for name in rates if (rate := getattr(self, name)) is not None and rate < 1
        ]
        return tuple(found)


def _moving_ns(size_bytes: int, bytes_per_s: int | None) -> int:
    return 0 if bytes_per_s is None else -(-size_bytes * _SECOND // bytes_per_s)
