"""The pace of a schedule: when each action would begin if links were free and every F, I and W took one beat."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autopipe.schedules.action import Action, Schedule

BEATS = {"F": 1, "B": 2, "I": 1, "W": 1}
NEVER = 2**62


class Pace:
    """The earliest beat in which each action begins, where each stage waits for the one before it.

    Attributes
    ----------
    forward, backward : tuple of arrays
        By stage, then micro-batch: the beat of F, and of B or I; `NEVER` for an action that cannot begin.
    """

    def __init__(self, schedule: Schedule) -> None:
        count = schedule.micro_batches
        self.forward = tuple(array("q", [NEVER]) * count for _ in range(schedule.stages))
        self.backward = tuple(array("q", [NEVER]) * count for _ in range(schedule.stages))
        self._ends = tuple(array("q", [NEVER]) * count for _ in range(schedule.stages))
        self._lags: dict[tuple[int, int, bool], int] = {}
        self._run(schedule)

    def _run(self, schedule: Schedule) -> None:
        clocks = [0] * schedule.ranks
        rows = [iter(actions) for actions in schedule.actions]
        waiting: dict[tuple[bool, int, int], tuple[int, Action]] = {}
        ready: list[tuple[int, Action | None]] = [(rank, None) for rank in range(schedule.ranks)]
        while ready:
            rank, action = ready.pop()
            action = action or next(rows[rank], None)
            while action is not None:
                needed, end = self._needs(action)
                if end == NEVER:
                    waiting[needed] = (rank, action)
                    break
                clocks[rank] = self._begin(action, max(clocks[rank], end))
                made = (action.op == "F", action.stage, action.micro_batch)
                if action.op != "W" and made in waiting:
                    ready.append(waiting.pop(made))
                action = next(rows[rank], None)

    def _needs(self, action: Action) -> tuple[tuple[bool, int, int], int]:
        """Return what an action of the neighbouring stage must have made, and the beat in which that ends."""
        stage, i = action.stage, action.micro_batch
        if action.op == "F" and stage > 0:
            begun = self.forward[stage - 1][i]
            return (True, stage - 1, i), begun if begun == NEVER else begun + BEATS["F"]
        if action.op in ("B", "I") and stage + 1 < len(self._ends):
            return (False, stage + 1, i), self._ends[stage + 1][i]
        return (True, stage, i), 0

    def _begin(self, action: Action, beat: int) -> int:
        """Note the beat of an action and return the one after its end."""
        end = beat + BEATS[action.op]
        if action.op == "F":
            self.forward[action.stage][action.micro_batch] = beat
        elif action.op != "W":
            self.backward[action.stage][action.micro_batch] = beat
            self._ends[action.stage][action.micro_batch] = end
        return end

    def lag(self, source: int, target: int, backward: bool) -> int:
        """Return how many messages from stage ``source`` to ``target`` begin to leave before the first is read.

        It is the most, over all messages, of those that begin no later than the message and before its reader:
        a rank that waits for message k only before it makes message k + lag waits for nothing that waits for it.
        """
        way = (source, target, backward)
        if way not in self._lags:
            beats = self.backward if backward else self.forward
            writes, reads = beats[source], beats[target]
            order = sorted(range(len(writes)), key=writes.__getitem__)
            lag, begun = 1, 0
            for position, i in enumerate(order):
                while begun < len(order) and writes[order[begun]] < reads[i]:
                    begun += 1
                lag = max(lag, begun - position)
            self._lags[way] = lag
        return self._lags[way]
