"""A schedule is fitted to unequal times: a list scheduler that always takes the most urgent action that can run."""

import heapq
from collections.abc import Sequence

import msgspec

from autopipe.errors import InputError
from autopipe.schedules.action import Action, Op, Schedule


class StageTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage takes for one micro-batch, in any one unit: F, I, W, and the hop to the next stage and back."""

    forward: int
    input_grad: int
    weight_grad: int
    hop: int = 0


def fitted(
    stage_ranks: Sequence[int],
    micro_batches: int,
    times: Sequence[StageTimes],
    *,
    limits: Sequence[int],
    ahead: Sequence[int] | None = None,
    split: bool = True,
    deepest_first: bool = True,
    reserve: bool = True,
    name: str = "fitted",
) -> Schedule:
    """Return the schedule in which every rank, whenever it is free, takes the most urgent action that can run.

    Input gradients come first, since other ranks wait for them; then forwards, while the rank holds fewer
    stage-micro-batches than its limit; weight gradients fill the time in which neither can run, and make
    room when the limit is reached. A weight gradient also waits if an input gradient is about to arrive
    sooner than half of it would take.

    Parameters
    ----------
    stage_ranks : sequence of int
        The rank of each stage.
    times : sequence of StageTimes
        By stage.
    limits : sequence of int
        By rank: the most stage-micro-batches held at once, from F to W (to B without ``split``); at least
        its number of stages.
    ahead : sequence of int, optional
        By rank: the most stage-micro-batches forwarded whose input gradient is not done; ``limits`` if not given.
    split : bool
        Whether the backward is split into I and W; if not, B takes the time of both.
    reserve : bool
        Whether a forward leaves room for one of each later stage of its rank. Without, a rank can fill up with
        its first stage and go no further.
    deepest_first : bool
        Among the forwards that can run, whether to take the last stage's or the first micro-batch's.

    Raises
    ------
    InputError
        If a limit is too small for the schedule to go on.

    References
    ----------
    Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, arXiv 2401.10241, section 3, for the idea of a
    heuristic on profiled times under a memory limit.
    """
    ranks = max(stage_ranks) + 1
    board = _Board(
        stage_ranks,
        micro_batches,
        times,
        limits,
        limits if ahead is None else ahead,
        split=split,
        deepest_first=deepest_first,
        reserve=reserve,
    )
    board.run()
    done = sum(len(row) for row in board.rows)
    if done < micro_batches * len(stage_ranks) * (3 if split else 2):
        raise InputError(
            f"with at most {tuple(limits)} stage-micro-batches held by the {ranks} ranks (and {tuple(ahead or limits)} "
            "of them before their input gradient) the schedule cannot go on: raise the limits."
        )
    return Schedule(
        name=name,
        micro_batches=micro_batches,
        stage_ranks=tuple(stage_ranks),
        actions=tuple(tuple(row) for row in board.rows),
    )


class _Board:
    """The state of the list scheduler: what can run on each rank from when on."""

    def __init__(
        self,
        stage_ranks: Sequence[int],
        micro_batches: int,
        times: Sequence[StageTimes],
        limits: Sequence[int],
        ahead: Sequence[int],
        *,
        split: bool,
        deepest_first: bool,
        reserve: bool,
    ) -> None:
        self.rows: list[list[Action]] = [[] for _ in limits]
        self._owner = tuple(stage_ranks)
        self._last = len(stage_ranks) - 1
        self._times = tuple(times)
        self._limits = tuple(limits)
        self._ahead = tuple(ahead)
        self._split = split
        self._deepest_first = deepest_first
        deeper = [sum(other == rank for other in stage_ranks[s + 1 :]) for s, rank in enumerate(stage_ranks)]
        self._reserved = deeper if reserve else [0] * len(stage_ranks)
        self._held = [0] * len(limits)
        self._open = [0] * len(limits)
        self._forwards: list[list[tuple[int, int, int]]] = [[] for _ in limits]
        self._backwards: list[list[tuple[int, int, int]]] = [[] for _ in limits]
        self._weights: list[list[tuple[int, int]]] = [[] for _ in limits]
        self._idle: set[int] = set()
        for i in range(micro_batches):
            self._forwards[self._owner[0]].append((0, 0, i))
        self._events = [(0, rank) for rank in range(len(limits))]

    def run(self) -> None:
        """Let every rank act whenever it is free, in the order of time."""
        heapq.heapify(self._events)
        while self._events:
            now, rank = heapq.heappop(self._events)
            action = self._choose(rank, now)
            if action is not None:
                self.rows[rank].append(action)
                self._finish(action, rank, now + self._lasts(action))
                continue
            arrivals = [ready for ready, *_ in (*self._forwards[rank], *self._backwards[rank]) if ready > now]
            if arrivals:
                heapq.heappush(self._events, (min(arrivals), rank))
            else:
                self._idle.add(rank)

    def _choose(self, rank: int, now: int) -> Action | None:
        backwards = [(stage, i) for ready, stage, i in self._backwards[rank] if ready <= now]
        if backwards:
            stage, i = min(backwards, key=lambda pair: (pair[1], -pair[0]))
            return Action(Op.INPUT_GRAD if self._split else Op.BACKWARD, stage, i)
        room = min(self._limits[rank] - self._held[rank], self._ahead[rank] - self._open[rank])
        if room > 0:
            forwards = [
                (stage, i) for ready, stage, i in self._forwards[rank] if ready <= now and room > self._reserved[stage]
            ]
            if forwards:
                stage, i = min(forwards, key=self._urgency)
                return Action(Op.FORWARD, stage, i)
        if self._weights[rank]:
            stage, i = self._weights[rank][0]
            soon = min((ready for ready, *_ in self._backwards[rank]), default=None)
            if soon is None or soon - now >= self._times[stage].weight_grad / 2:
                return Action(Op.WEIGHT_GRAD, stage, i)
        return None

    def _urgency(self, forward: tuple[int, int]) -> tuple[int, int]:
        stage, i = forward
        return (-stage, i) if self._deepest_first else (i, -stage)

    def _lasts(self, action: Action) -> int:
        times = self._times[action.stage]
        match action.op:
            case Op.FORWARD:
                return times.forward
            case Op.INPUT_GRAD:
                return times.input_grad
            case Op.WEIGHT_GRAD:
                return times.weight_grad
        return times.input_grad + times.weight_grad

    def _finish(self, action: Action, rank: int, end: int) -> None:
        """Take an action off the board and put up what it makes possible."""
        stage, i = action.stage, action.micro_batch
        if action.op is Op.FORWARD:
            self._forwards[rank] = [entry for entry in self._forwards[rank] if entry[1:] != (stage, i)]
            self._held[rank] += 1
            self._open[rank] += 1
            if stage < self._last:
                self._offer(self._forwards, stage + 1, i, end, stage, rank)
            else:
                self._offer(self._backwards, stage, i, end, stage, rank)
        elif action.op is Op.WEIGHT_GRAD:
            self._weights[rank].remove((stage, i))
            self._held[rank] -= 1
        else:
            self._backwards[rank] = [entry for entry in self._backwards[rank] if entry[1:] != (stage, i)]
            self._open[rank] -= 1
            if self._split:
                self._weights[rank].append((stage, i))
            else:
                self._held[rank] -= 1
            if stage > 0:
                self._offer(self._backwards, stage - 1, i, end, stage - 1, rank)
        heapq.heappush(self._events, (end, rank))

    def _offer(
        self, board: list[list[tuple[int, int, int]]], stage: int, i: int, end: int, crossing: int, rank: int
    ) -> None:
        owner = self._owner[stage]
        ready = end if owner == rank else end + self._times[crossing].hop
        board[owner].append((ready, stage, i))
        if owner in self._idle:
            self._idle.discard(owner)
            heapq.heappush(self._events, (ready, owner))
