"""A branch of the search: a cell and a kind of schedule, with a time under all its steps."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster
from autopipe.planner.bounds import block, bottleneck, narrow
from autopipe.planner.cells import Cell, Tables, least_stage_ns
from autopipe.planner.counted import counted_bound_ns
from autopipe.planner.deadline import Deadline
from autopipe.planner.engine import ENGINES
from autopipe.planner.kind import Kind, kinds
from autopipe.planner.prices import Prices, best_prices, demand, even_prices, priced_bound_ns
from autopipe.planner.problem import FAR, Problem, make_problem, without_limits
from autopipe.planner.request import Request, most_stages
from autopipe.planner.solved import keeps, solve_problem
from autopipe.planner.step_bound import tightest
from autopipe.planner.wishes import Wishes

SLACK = 1.25


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A cell under a kind of schedule, and a time under its steps.

    The time is a cheap one at first, then one by prices (``priced``), then the tight one of a split (``tight``).
    """

    cell: Cell
    kind: Kind
    bound_ns: int
    priced: bool = False
    tight: bool = False
    split: tuple[int, ...] | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """By what branches are looked at in turn."""
        return self.bound_ns, self.kind.preference, self.cell.order

    @property
    def outlook(self) -> tuple[object, ...]:
        """By what branches of one pipeline size are tried first: the bound, and the idle time of filling the ranks."""
        count = self.cell.micro_batches
        return self.bound_ns * (count + len(self.cell.grid.rows) - 1) // count, self.order


@dataclass(frozen=True, kw_only=True)
class Space:
    """What is searched: a profile on a cluster, as it was asked for."""

    profile: Profile
    cluster: Cluster
    request: Request
    wishes: Wishes
    tables: Tables
    _paces: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)
    _last: dict[tuple[Cell, Kind], Problem] = field(default_factory=dict, repr=False)
    _prices: dict[tuple[tuple[tuple[int, ...], ...], Kind, int], Prices | None] = field(
        default_factory=dict, repr=False
    )

    def branches(self, cell: Cell) -> Iterator[Branch]:
        """Yield the branches of a cell."""
        groups, ranks = most_stages(self.profile), len(cell.grid.rows)
        for kind in kinds(
            ranks,
            groups,
            schedule=self.request.schedule,
            virtual=self.request.virtual,
            can_split=self.tables.base(cell.micro_batch_size).base.times.input_grad_ns is not None,
        ):
            yield Branch(cell=cell, kind=kind, bound_ns=max(cell.bound_ns, self._pace_bound_ns(cell, kind)))

    def _pace_bound_ns(self, cell: Cell, kind: Kind) -> int:
        """Return a time under every step by the longest stage alone: as many rows of layers cannot all be shorter."""
        sized, ranks = self.tables.sized(cell.micro_batch_size), len(cell.grid.rows)
        key = cell.micro_batch_size, ranks * kind.virtual
        if key not in self._paces:
            times = [cost.forward_ns + cost.backward_ns for cost in sized.costs]
            times[-1] += sized.loss.forward_ns + sized.loss.backward_ns
            self._paces[key] = least_stage_ns(times, key[1]) + (kind.virtual - 1) * min(times)
        speed = max(device.speed for device in cell.grid.devices)
        return int(cell.micro_batches * self._paces[key] / speed)

    def holds_state(self, cell: Cell) -> bool:
        """Tell whether all ranks together have memory for parameters, gradients, optimizer state and buffers."""
        limits = [device.memory_bytes for device in cell.grid.devices]
        state = int(self.tables.base(cell.micro_batch_size).base.memory.state[0, -1])
        return any(limit is None for limit in limits) or state <= sum(limit or 0 for limit in limits)

    def problem(self, branch: Branch) -> Problem:
        """Return the problem of cutting the stages, with levels of recompute where they may help."""
        key = branch.cell, branch.kind
        if key not in self._last:
            self._last.clear()
            self._last[key] = self._new_problem(branch)
        return self._last[key]

    def _new_problem(self, branch: Branch) -> Problem:
        cell = branch.cell
        base = self.tables.base(cell.micro_batch_size)
        problem = self._made(branch, base_only=True)
        if base.complete and self.request.recompute != "auto":
            return problem
        return self._made(branch, base_only=False) if _memory_binds(problem) else problem

    def priced(self, branch: Branch, enough_ns: int | None) -> Branch | None:
        """Return ``branch`` with its bound by counting and by prices, None if nothing in it fits.

        A bound above ``enough_ns`` need not be exact.
        Prices, which hold for every micro-batch size, are found once for several of them.
        """
        cell = branch.cell
        if not self.holds_state(cell):
            return None
        base = self.tables.base(cell.micro_batch_size).base
        asked = demand(base, cell.grid, kind=branch.kind, micro_batches=cell.micro_batches)
        bound = counted_bound_ns(asked, enough_ns=enough_ns)
        if enough_ns is not None and bound >= enough_ns:
            return replace(branch, bound_ns=max(branch.bound_ns, bound), priced=True)
        bound = max(branch.bound_ns, bound, priced_bound_ns(asked, even_prices(len(cell.grid.rows))))
        key = cell.grid.rows, branch.kind, cell.micro_batch_size.bit_length()
        if key not in self._prices:
            self._prices[key] = best_prices(asked)
        prices = self._prices[key]
        if prices is not None:
            bound = max(bound, priced_bound_ns(asked, prices))
        return replace(branch, bound_ns=bound, priced=True)

    def tightened(self, branch: Branch) -> Branch | None:
        """Return ``branch`` with its tight bound, None if nothing in it fits."""
        if not self.holds_state(branch.cell):
            return None
        bound = tightest(self.problem(branch))
        if bound is None:
            return None
        return replace(branch, bound_ns=max(bound.step_ns, branch.bound_ns), tight=True, split=bound.split)

    def holds(self, branch: Branch, deadline: Deadline) -> bool:
        """Tell whether something in a branch is found that fits, however long its step."""
        problem = self.problem(branch)
        return not problem.coupled or solve_problem(problem, deadline, ENGINES[0]) is not None

    def _made(self, branch: Branch, *, base_only: bool) -> Problem:
        cell, tables = branch.cell, self.tables
        return make_problem(
            tables.base(cell.micro_batch_size) if base_only else tables.levels(cell.micro_batch_size),
            cell.grid,
            kind=branch.kind,
            micro_batches=cell.micro_batches,
            wishes=self.wishes,
        )


def _memory_binds(problem: Problem) -> bool:
    """Tell whether a split that might be wanted without limits does not fit without recompute."""
    if all(limit is None for limit in problem.limits):
        return False
    free = without_limits(problem)
    pace, split = bottleneck(free, [block(free, free.pace_ns, stage) for stage in range(free.stages)])
    if pace >= FAR:
        return False
    if problem.coupled:
        return not all(problem.allowed[s][split[s], split[s + 1]] for s in range(problem.stages)) or not keeps(
            problem, split
        )
    wanted = round(pace * max(SLACK, 1 + 2 * problem.stages / problem.micro_batches))
    free = narrow(free, wanted)
    return any(
        bool(
            (
                block(free, free.legal, stage)
                & (block(free, free.pace_ns, stage) <= wanted)
                & ~block(free, problem.allowed, stage)
            ).any()
        )
        for stage in range(free.stages)
    )
