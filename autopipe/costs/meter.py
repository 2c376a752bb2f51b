"""The memory of a rank is metered as it goes through the steps of a lowered schedule."""

from collections.abc import Sequence

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.schedules.action import Op, Schedule
from autopipe.schedules.comms import Kind, Step


class MemoryMeter:
    """Follows one rank's steps and keeps what it holds; the peaks are while it computes.

    A receive buffer counts from its post, and from its wait on as part of the micro-batch that has it; a
    message counts until the wait for its send, unless the stage saves what is in it. See `schedules.residency`
    for the same in numbers of things.

    Attributes
    ----------
    peak_bytes : int
        The most held so far, state included.
    held_bytes : int
        What is held while the latest action computes.
    peak_in_flight : int
        The most micro-batches of all its stages forwarded and not yet backwarded.
    """

    def __init__(self, schedule: Schedule, stages: Sequence[StageCost], edges: Sequence[EdgeCost], rank: int) -> None:
        self._stages = stages
        # By way, what a message holds where it is received and where it is sent.
        self._bytes: dict[tuple[int, int], tuple[int, int]] = {}
        for cost in edges:
            way, size, unsaved = (cost.edge.source, cost.edge.target), cost.forward_bytes, cost.unsaved_bytes
            self._bytes[way] = size, size if unsaved is None else unsaved
            self._bytes[way[::-1]] = (cost.backward_bytes,) * 2
        self._is_free = not any(map(any, self._bytes.values()))
        self.trains = any(action.op is not Op.FORWARD for action in schedule.actions[rank])
        state = sum(stages[stage].state_bytes for stage, home in enumerate(schedule.stage_ranks) if home == rank)
        self._held = state
        self._in_flight = 0
        self.peak_bytes = self.held_bytes = state
        self.peak_in_flight = 0

    def observe(self, step: Step) -> None:
        """Take note of the rank's next step."""
        action, message = step.action, step.message
        if action is None:
            if self._is_free or message is None:
                return
            kind = step.kind
            received, sent = self._bytes[message.source, message.target]
            if kind is Kind.POST:
                self._held += received
            elif kind is Kind.WAIT_RECEIVE:
                self._held -= received
            else:
                self._held += sent if kind is Kind.SEND else -sent
            return
        op, stage = action.op, self._stages[action.stage]
        if op is Op.FORWARD:
            self._in_flight += 1
            if self._in_flight > self.peak_in_flight:
                self.peak_in_flight = self._in_flight
        else:
            self._held -= stage.saved_bytes
        ahead = stage.forward_working_bytes if op is Op.FORWARD else None
        self.held_bytes = self._held + stage.saved_bytes + (stage.working_bytes if ahead is None else ahead)
        if self.held_bytes > self.peak_bytes:
            self.peak_bytes = self.held_bytes
        if op is Op.INPUT_GRAD or (op is Op.FORWARD and self.trains):
            self._held += stage.saved_bytes
        if op is Op.BACKWARD or op is Op.WEIGHT_GRAD or not self.trains:
            self._in_flight -= 1
