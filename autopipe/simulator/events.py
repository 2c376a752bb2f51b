"""A schedule is run on paper, event by event: the lowered steps that the executor runs, with times for each."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from autopipe.costs.meter import MemoryMeter
from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.documents.timeline import Lane, RankTimeline, Span, Timeline
from autopipe.errors import InputError, ScheduleError
from autopipe.hardware.cluster import Link
from autopipe.schedules.action import Op, Schedule
from autopipe.schedules.check import check
from autopipe.schedules.collector import collector_paused
from autopipe.schedules.comms import Kind, Message, Step, edges_by_stage, rank_steps
from autopipe.simulator.conditions import IDEAL, Conditions


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulated step came to.

    ``makespan_ns`` ends with the last action, ``step_ns`` with the last optimizer; ``busy_ns`` (actions and
    optimizer), ``peak_bytes``, ``peak_in_flight`` and ``spans`` are by rank.
    """

    makespan_ns: int
    step_ns: int
    busy_ns: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    peak_in_flight: tuple[int, ...]
    spans: tuple[tuple[Span, ...], ...]


def simulate(
    schedule: Schedule, stages: Sequence[StageCost], edges: Sequence[EdgeCost], *, conditions: Conditions = IDEAL
) -> Timeline:
    """Return the predicted timeline of one step of ``schedule``.

    Parameters are those of `run`.
    """
    result = run(schedule, stages, edges, conditions=conditions)
    ranks = tuple(
        RankTimeline(
            rank=rank,
            spans=tuple(sorted(result.spans[rank], key=lambda span: (span.start_ns, span.end_ns))),
            peak_in_flight=result.peak_in_flight[rank],
            peak_bytes=result.peak_bytes[rank],
        )
        for rank in range(schedule.ranks)
    )
    return Timeline(
        source="simulated",
        schedule=schedule.name,
        micro_batches=schedule.micro_batches,
        step_ns=result.step_ns,
        ranks=ranks,
    )


@collector_paused()
def run(
    schedule: Schedule,
    stages: Sequence[StageCost],
    edges: Sequence[EdgeCost],
    *,
    conditions: Conditions = IDEAL,
    with_spans: bool = True,
) -> Run:
    """Return what one step of ``schedule`` comes to.

    A rank computes one action at a time, in order. A transfer begins when its send has started, its receive
    is posted and the link between the two ranks has taken the transfer before; it occupies the link for
    bytes / bandwidth, and arrives after the latency on top. Ranks compute while messages travel; what the
    conditions say that a message takes of its receiver counts where it came while that computed. When the
    last action is over, gradients are summed (tied ones over ranks, all over replicas) and every rank updates its
    parameters.

    Parameters
    ----------
    stages : sequence of StageCost
        By stage index.
    edges : sequence of EdgeCost
        Between the stages.
    conditions : Conditions
        The executor's own costs, overlap, and shared connections of machines; by default none of them counts.
    with_spans : bool
        Whether to record every action, wait and transfer.

    Raises
    ------
    ScheduleError
        If the schedule cannot run, with the fault marked.
    InputError
        If it splits the backward and the costs do not.

    Notes
    -----
    Events are taken in order of time, then rank: deterministic. O(n log p) for n actions.
    """
    return _Simulation(schedule, stages, edges, conditions, with_spans=with_spans).result()


@dataclass
class _Rank:
    """One rank under way: the step it stands at, since when it waits, what it has done."""

    steps: Iterator[Step]
    meter: MemoryMeter
    step: Step | None = None
    blocked_since: int = 0
    held_by: Message | None = None
    busy_ns: int = 0
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class _Way:
    """What a message from one stage to another costs; ``shared`` names what it occupies while its bytes pass."""

    ranks: tuple[int, int]
    shared: tuple[tuple[str, int, int], ...]
    transmit_ns: int
    transfer_ns: int
    sending_ns: int
    taking_ns: int


class _Simulation:
    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[StageCost],
        edges: Sequence[EdgeCost],
        conditions: Conditions,
        *,
        with_spans: bool,
    ) -> None:
        self._schedule = schedule
        self._conditions = conditions
        self._blocks = conditions.sending_ns(1) > 0 or not conditions.overlap
        self._takes = conditions.taking_ns(1) > 0
        self._stages = stages
        self._edges = edges
        self._with_spans = with_spans
        near = edges_by_stage((cost.edge for cost in edges), schedule.stages)
        self._ranks = [
            _Rank(rank_steps(schedule, near, rank), MemoryMeter(schedule, stages, edges, rank))
            for rank in range(schedule.ranks)
        ]
        self._durations = _durations(schedule, stages, conditions.action_ns)
        self._ways: dict[tuple[int, int], _Way] = {}
        for cost in edges:
            there, back = (cost.edge.source, cost.edge.target), (cost.edge.target, cost.edge.source)
            self._ways[there] = self._way(*there, cost.link, cost.forward_bytes)
            self._ways[back] = self._way(*back, cost.link, cost.backward_bytes)
        self._occupied = any(way.transmit_ns for way in self._ways.values())
        self._offered: dict[Message, int] = {}
        self._free_at: dict[tuple[str, int, int], int] = {}
        self._arrivals: tuple[dict[Message, int], dict[Message, int]] = ({}, {})
        self._waiting: dict[Message, list[int]] = {}
        self._events = [(0, rank) for rank in range(schedule.ranks)]

    def result(self) -> Run:
        makespan = 0
        while self._events:
            now, rank = heapq.heappop(self._events)
            makespan = max(makespan, self._advance(rank, now))
        if any(rank.step is not None for rank in self._ranks):
            check(self._schedule, [cost.edge for cost in self._edges])
            raise ScheduleError(f"schedule {self._schedule.name!r} stopped half-way: check its actions.")
        step_ns = max(self._finish(rank, makespan) for rank in range(len(self._ranks)))
        return Run(
            makespan_ns=makespan,
            step_ns=step_ns,
            busy_ns=tuple(rank.busy_ns for rank in self._ranks),
            peak_bytes=tuple(rank.meter.peak_bytes for rank in self._ranks),
            peak_in_flight=tuple(rank.meter.peak_in_flight for rank in self._ranks),
            spans=tuple(tuple(rank.spans) for rank in self._ranks),
        )

    def _advance(self, number: int, now: int) -> int:
        """Let a rank go on from time ``now`` until it computes or must wait; return when its last action ends."""
        rank = self._ranks[number]
        waited = now - rank.blocked_since if rank.step is not None else 0
        if self._with_spans and waited > 0:
            rank.spans.append(Span(lane=Lane.WAIT, label=str(rank.step), start_ns=rank.blocked_since, end_ns=now))
        while (step := rank.step or next(rank.steps, None)) is not None:
            rank.step = None
            message = step.message
            if message is None:
                return self._compute(number, rank, step, now)
            if step.kind is Kind.POST or (step.kind is Kind.SEND and not self._blocks):
                self._offer(message, now)
            elif step.kind is Kind.SEND:
                if self._send_slowly(number, rank, step, message, now):
                    return 0
            elif rank.held_by is message:
                rank.held_by = None
            elif not self._has_passed(message, now, number, sender=step.kind is Kind.WAIT_SEND):
                rank.step, rank.blocked_since = step, now
                return 0
            elif self._takes and step.kind is Kind.WAIT_RECEIVE:
                taking = self._ways[message.source, message.target].taking_ns
                self._hold(number, rank, step, message, now, max(0, taking - waited))
                return 0
            rank.meter.observe(step)
        return 0

    def _compute(self, number: int, rank: _Rank, step: Step, now: int) -> int:
        action = step.action
        assert action is not None
        rank.meter.observe(step)
        duration = self._durations[action.stage][action.op]
        rank.busy_ns += duration
        if self._with_spans:
            rank.spans.append(
                Span(
                    lane=Lane.COMPUTE,
                    label=str(action),
                    start_ns=now,
                    end_ns=now + duration,
                    held_bytes=rank.meter.held_bytes,
                )
            )
        heapq.heappush(self._events, (now + duration, number))
        return now + duration

    def _send_slowly(self, number: int, rank: _Rank, step: Step, message: Message, now: int) -> bool:
        """Hold the sender while a message is handed over, or without overlap until it is on its way; tell if so."""
        if rank.held_by is message:
            rank.held_by = None
            return False
        way = self._ways[message.source, message.target]
        held = way.sending_ns
        if self._conditions.overlap:
            self._offer(message, now + self._conditions.message_ns)
        else:
            self._offer(message, now)
            held += way.transmit_ns
        self._hold(number, rank, step, message, now, held)
        return True

    def _hold(self, number: int, rank: _Rank, step: Step, message: Message, now: int, held: int) -> None:
        """Keep a rank at a message for as long as that takes of its own time."""
        rank.held_by, rank.step, rank.blocked_since = message, step, now + held
        if self._with_spans and held:
            lane, word = (Lane.SEND, "send") if step.kind is Kind.SEND else (Lane.RECEIVE, "take")
            rank.spans.append(Span(lane=lane, label=f"{word} {message}", start_ns=now, end_ns=now + held))
        heapq.heappush(self._events, (now + held, number))

    def _offer(self, message: Message, now: int) -> None:
        """One side has come to the message; the transfer begins when the other has too."""
        before = self._offered.pop(message, None)
        if before is None:
            self._offered[message] = now
        else:
            self._transfer(message, max(before, now))

    def _has_passed(self, message: Message, now: int, number: int, *, sender: bool) -> bool:
        """Tell whether the message has left or arrived; if not, let the rank go on when it has."""
        arrivals = self._arrivals[sender]
        arrival = arrivals.get(message)
        if arrival is None:
            self._waiting.setdefault(message, []).append(number)
            return False
        if arrival > now:
            heapq.heappush(self._events, (arrival, number))
            return False
        del arrivals[message]
        return True

    def _transfer(self, message: Message, now: int) -> None:
        way = self._ways[message.source, message.target]
        begin = now
        if self._occupied:
            begin = max(now, *(self._free_at.get(part, 0) for part in way.shared))
            for part in way.shared:
                self._free_at[part] = begin + way.transmit_ns
        arrival = begin + way.transfer_ns
        self._arrivals[0][message] = self._arrivals[1][message] = arrival
        for number in self._waiting.pop(message, ()):
            heapq.heappush(self._events, (arrival, number))
        if self._with_spans and arrival > begin:
            for lane, owner in zip((Lane.SEND, Lane.RECEIVE), way.ranks, strict=True):
                self._ranks[owner].spans.append(Span(lane=lane, label=str(message), start_ns=begin, end_ns=arrival))

    def _way(self, source: int, target: int, link: Link, size: int) -> "_Way":
        """Return what a message of ``size`` bytes from stage ``source`` to ``target`` costs."""
        ranks = self._schedule.stage_ranks[source], self._schedule.stage_ranks[target]
        return _Way(
            ranks=ranks,
            shared=self._shared(*ranks),
            transmit_ns=link.transmit_ns(size),
            transfer_ns=link.transfer_ns(size),
            sending_ns=self._conditions.sending_ns(size),
            taking_ns=self._conditions.taking_ns(size),
        )

    def _shared(self, source: int, target: int) -> tuple[tuple[str, int, int], ...]:
        """Return what a transfer between two ranks occupies: their link, and between machines what these share."""
        link = ("link", source, target)
        nodes = self._conditions.nodes
        if not nodes or nodes[source] == nodes[target]:
            return (link,)
        return link, ("out of", nodes[source], 0), ("into", nodes[target], 0)

    def _finish(self, number: int, makespan: int) -> int:
        """Add what follows the last action on one rank and return when it ends."""
        rank = self._ranks[number]
        own = [stage for stage, home in zip(self._stages, self._schedule.stage_ranks, strict=True) if home == number]
        tied = max((stage.tied_ns for stage in own), default=0)
        replicas = sum(stage.replica_ns for stage in own)
        optimizer = sum(stage.optimizer_ns for stage in own) if rank.meter.trains else 0
        tail = (
            (Lane.SEND, "tied gradients", tied if rank.meter.trains else 0),
            (Lane.SEND, "gradients of replicas", replicas if rank.meter.trains else 0),
            (Lane.OPTIMIZER, "optimizer", optimizer),
        )
        end = makespan
        for lane, label, duration in tail:
            if duration and self._with_spans:
                rank.spans.append(Span(lane=lane, label=label, start_ns=end, end_ns=end + duration))
            end += duration
        rank.busy_ns += optimizer
        return end


def _durations(schedule: Schedule, stages: Sequence[StageCost], action_ns: int) -> tuple[dict[Op, int], ...]:
    parts = {Op.INPUT_GRAD, Op.WEIGHT_GRAD}
    split = {action.stage for row in schedule.actions for action in row if action.op in parts}
    for index in sorted(split):
        if stages[index].input_grad_ns is None or stages[index].weight_grad_ns is None:
            raise InputError(
                f"schedule {schedule.name!r} splits the backward of stage {index}, but its two parts were not "
                "measured: choose a schedule with whole backwards, such as 1f1b."
            )
    return tuple(
        {
            Op.FORWARD: stage.forward_ns + action_ns,
            Op.BACKWARD: stage.backward_ns + action_ns,
            Op.INPUT_GRAD: (stage.input_grad_ns or 0) + action_ns,
            Op.WEIGHT_GRAD: (stage.weight_grad_ns or 0) + action_ns,
        }
        for stage in stages
    )
