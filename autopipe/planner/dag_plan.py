"""A graph is cut into the convex stages with the least bottleneck, with a proof or the true gap."""

import math
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from autopipe.errors import InfeasibleError, InputError
from autopipe.planner.closed_sets import ClosedSets, every_closed_set, sets_of_orders
from autopipe.planner.convex import Chain, Combine, Programme
from autopipe.planner.dag import Dag, StageLoad, stage_loads
from autopipe.planner.dag_contraction import Contraction, contract_dominated, contract_uncuttable, uncontracted
from autopipe.planner.dag_loads import INFINITE, Loads
from autopipe.planner.dag_orders import orders
from autopipe.planner.dag_recompute import choices, faster_seconds, recompute_is_faster
from autopipe.planner.deadline import NEVER, Deadline, OutOfTimeError
from autopipe.planner.memory_price import MemoryPrice
from autopipe.planner.range_search import RangeSearch
from autopipe.units import format_bytes

MOST_SETS = 100_000
GROWTH = 1.15
SAME = 1e-10
LISTED, BOUNDED, ORDERED = "closed sets", "branch and bound", "topological orders"


@dataclass(frozen=True, kw_only=True)
class DagPlan:
    """Stages of a graph and how good they are.

    Attributes
    ----------
    stage_of : tuple of int
        By node; stages are 0 to S - 1, none empty.
    recompute : frozenset of int
        The nodes that recompute.
    bound_s : float
        No cut of the searched kind has a bottleneck under it.
    engine : str
        What proved the bound: a search over all closed sets, or branch and bound over ranges of them.
    """

    dag: Dag
    stage_of: tuple[int, ...]
    recompute: frozenset[int]
    loads: tuple[StageLoad, ...]
    bound_s: float
    engine: str

    @property
    def bottleneck_s(self) -> float:
        """The load of the slowest stage."""
        return max(load.seconds for load in self.loads)

    @property
    def gap(self) -> float:
        """How far above the bound the bottleneck is, as a share of it; 0 where the plan is proven the best."""
        gap = self.bottleneck_s / self.bound_s - 1 if self.bound_s > 0 else 0.0
        return gap if gap > 1e-9 else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether no cut is better."""
        return self.gap == 0.0


def plan_dag(dag: Dag, *, stages: int | None = None, time_limit_s: float = 30.0) -> DagPlan:
    """Return the cut of ``dag`` with the least bottleneck, and among such cuts the least transfers.

    Parameters
    ----------
    stages : int, optional
        Exactly so many; by default as many as pay, up to one per device.

    Raises
    ------
    InputError
        If the graph has a cycle, or ``stages`` cannot be had.
    InfeasibleError
        If no cut fits in memory; the message names the limit and one that would do.

    Notes
    -----
    Closed sets are listed, where there are at most `MOST_SETS`, and the search over chains of them is exact.
    Otherwise branch and bound over ranges of closed sets runs until it has a proof or the time is up. Same
    input, same plan, unless the time limit ends the search.
    """
    deadline = Deadline.after(time_limit_s)
    most = min(dag.devices, dag.nodes) if stages is None else stages
    if not 1 <= most <= min(dag.devices, dag.nodes):
        raise InputError(
            f"{most} stages cannot be put on {dag.devices} devices with {dag.nodes} nodes: ask for 1 to "
            f"{min(dag.devices, dag.nodes)}."
        )
    graph = uncontracted(dag, faster_seconds(dag))
    if not graph.seconds.sum() > 0:
        raise InputError(
            f"the nodes of {dag.name!r} take no time at all: there is nothing to balance. Check its times."
        )
    binds = memory_may_bind(dag)
    if not binds and stages is None:
        graph = contract_dominated(graph)
    search = _Search(graph, stages=most, exactly=stages is not None, memory_binds=binds, deadline=deadline)
    found = search.run()
    if found is None:
        raise InfeasibleError(
            _infeasible(dag, most, exactly=stages is not None, proven=search.proven, deadline=deadline)
        )
    return _write(dag, found)


def memory_may_bind(dag: Dag) -> bool:
    """Tell whether a stage could be over the limit: whether all nodes together, with most in flight, are."""
    found = choices(dag, dag.in_flight(dag.devices))
    return found is not None and bool(found.base_bytes.sum() > found.limit_bytes)


@dataclass(frozen=True, kw_only=True)
class _Found:
    closed: ClosedSets
    chain: Chain
    bound_s: float
    engine: str


class _Search:
    """First plans from topological orders, then the exact search that the number of closed sets allows."""

    def __init__(
        self, graph: Contraction, *, stages: int, exactly: bool, memory_binds: bool, deadline: Deadline
    ) -> None:
        self._graph = graph
        self._stages = min(stages, graph.size)
        self._exactly = exactly
        self._memory_binds = memory_binds
        self._deadline = deadline
        self._all_s = float(graph.seconds.sum())
        priced_s = MemoryPrice.best(graph, self._stages).bound_s
        self._bound_s = max(self._all_s / self._stages, float(graph.seconds.max()), priced_s)
        self.proven = True

    def run(self) -> _Found | None:
        first = self._first()
        try:
            graph = self._contracted(first)
            closed = every_closed_set(graph, MOST_SETS, self._deadline)
            return self._bounded(graph, first) if closed is None else self._listed(closed, first)
        except OutOfTimeError:
            self.proven = False
            return first

    def _first(self) -> _Found | None:
        """Return the best plan along some topological orders; along the first one alone where time is too short."""
        closed = sets_of_orders(self._graph, orders(self._graph))
        try:
            chain = self._least(closed, INFINITE)
        except OutOfTimeError:
            closed = sets_of_orders(self._graph, islice(orders(self._graph), 1))
            chain = self._least(closed, INFINITE, NEVER)
        return None if chain is None else _Found(closed=closed, chain=chain, bound_s=self._bound_s, engine=ORDERED)

    def _contracted(self, first: _Found | None) -> Contraction:
        """Return the graph without the cuts that no plan better than the first can have."""
        if first is None or self._exactly:
            return self._graph
        most_s = first.chain.seconds * (1 + SAME)
        return contract_uncuttable(self._graph, most_s, (self._stages * most_s - self._all_s) / 2)

    def _listed(self, closed: ClosedSets, first: _Found | None) -> _Found | None:
        """Return the best plan of all; the first one, if it is that."""
        limit = INFINITE if first is None else first.chain.seconds * (1 + SAME)
        chain = self._least(closed, limit)
        if chain is None:
            return first
        least = chain.seconds
        return _Found(closed=closed, chain=self._frugal(closed, chain), bound_s=least, engine=LISTED)

    def _bounded(self, graph: Contraction, first: _Found | None) -> _Found | None:
        """Return the best plan that branch and bound finds in time."""
        known = _kept_groups(self._graph, graph, first)
        limit = 2 * self._all_s + 2 * sum(seconds for _, seconds in graph.nets)
        if first is not None:
            limit = first.chain.seconds * (1 + SAME)
        search = RangeSearch(
            graph,
            stages=self._stages,
            limit_s=limit,
            known=known,
            deadline=self._deadline,
            exactly=self._exactly,
        )
        bounded = search.solve()
        if bounded.closed is None or bounded.chain is None:
            self.proven = bounded.bound_s >= limit
            return None if first is None else replace(first, bound_s=bounded.bound_s, engine=BOUNDED)
        chain = self._frugal(bounded.closed, bounded.chain)
        return _Found(closed=bounded.closed, chain=chain, bound_s=bounded.bound_s, engine=BOUNDED)

    def _frugal(self, closed: ClosedSets, chain: Chain) -> Chain:
        """Return a chain with the same bottleneck, as few stages as it takes, and then the least sum of loads."""
        most_s = chain.seconds * (1 + SAME)
        best, enough = chain, len(chain.sets) - 1
        least = enough if self._exactly else math.ceil(self._all_s / most_s)
        try:
            while least < enough:
                stages = (least + enough) // 2
                fewer = self._programme(closed, most_s, combine=Combine.SUM, stages=stages).solve()
                if fewer is None:
                    least = stages + 1
                else:
                    best, enough = fewer, stages
            if best is chain:
                best = self._programme(closed, most_s, combine=Combine.SUM, stages=enough).solve() or chain
        except OutOfTimeError:
            return best
        return best

    def _least(self, closed: ClosedSets, most_s: float, deadline: Deadline | None = None) -> Chain | None:
        """Return the chain with the least bottleneck under ``most_s``, looking among low ones first."""
        limit = self._bound_s * 1.02
        while limit < min(most_s, self._all_s * GROWTH):
            chain = self._programme(closed, limit, deadline=deadline).solve()
            if chain is not None:
                return chain
            limit *= GROWTH
        return self._programme(closed, most_s, deadline=deadline).solve()

    def _programme(
        self,
        closed: ClosedSets,
        limit_s: float,
        *,
        combine: Combine = Combine.MAXIMUM,
        stages: int | None = None,
        deadline: Deadline | None = None,
    ) -> Programme:
        return Programme(
            closed=closed,
            stages=stages or self._stages,
            limit_s=limit_s,
            combine=combine,
            exactly=self._exactly,
            deadline=deadline or self._deadline,
        )


def _kept_groups(fine: Contraction, coarse: Contraction, first: _Found | None) -> list[np.ndarray]:
    """Return the closed sets of the first plan's orders, as far as they do not cut a group of ``coarse``."""
    if first is None:
        return [np.zeros(coarse.size, dtype=bool), np.ones(coarse.size, dtype=bool)]
    group_of = {node: group for group, nodes in enumerate(fine.groups) for node in nodes}
    found = {}
    columns = [[group_of[node] for node in nodes] for nodes in coarse.groups]
    held = np.array([first.closed.members[:, column].all(axis=1) for column in columns]).T
    some = np.array([first.closed.members[:, column].any(axis=1) for column in columns]).T
    for row in np.flatnonzero((held == some).all(axis=1)):
        found[held[row].tobytes()] = held[row]
    return list(found.values())


def _write(dag: Dag, found: _Found) -> DagPlan:
    """Return the plan, its loads counted anew from the graph alone."""
    stage_of = [0] * dag.nodes
    switched: set[int] = set()
    count = len(found.chain.sets) - 1
    for stage, (inner, outer) in enumerate(pairwise(found.chain.sets)):
        for node in found.closed.nodes_between(inner, outer):
            stage_of[node] = stage
        slower = Loads.of(found.closed, dag.in_flight(count - stage)).recomputed(inner, outer)
        assert slower is not None, "a chosen stage fits"
        switched.update(int(node) for node in slower[1])
    faster = {int(node) for node in np.flatnonzero(recompute_is_faster(dag))}
    recompute = frozenset(faster ^ switched)
    loads = stage_loads(dag, stage_of, recompute)
    plan = DagPlan(
        dag=dag,
        stage_of=tuple(stage_of),
        recompute=recompute,
        loads=loads,
        bound_s=min(found.bound_s, max(load.seconds for load in loads)),
        engine=found.engine,
    )
    check_cut(plan)
    return plan


def check_cut(plan: DagPlan) -> None:
    """Assert that a cut is convex and fits: a planner's own guarantee, checked on every answer."""
    dag, stage_of = plan.dag, plan.stage_of
    assert set(stage_of) == set(range(len(plan.loads))), "no stage is empty"
    assert len(plan.loads) <= dag.devices, "every stage has a device"
    assert all(stage_of[first] <= stage_of[second] for first, second in dag.edges), "no edge runs backward"
    if dag.memory_bytes is not None:
        limit = dag.memory_bytes * (1 + 1e-9)
        assert all(load.memory_bytes <= limit for load in plan.loads), "every stage fits in memory"


def _infeasible(dag: Dag, stages: int, *, exactly: bool, proven: bool, deadline: Deadline) -> str:
    """Return what is missing, and a limit that would do: solved again, along topological orders."""
    assert dag.memory_bytes is not None, "without a limit some cut exists"
    per_node = [choices(dag, 1), choices(dag, dag.in_flight(stages))]
    least = np.max([found.base_bytes - found.saved_bytes for found in per_node if found is not None], axis=0)
    largest = int(np.argmax(least))
    enough = _enough_bytes(dag, dag.memory_bytes, stages, exactly=exactly, deadline=deadline)
    remedy = "Give a larger --memory, more devices or a longer --time-limit."
    if enough is not None:
        remedy = (
            f"{format_bytes(round(enough))} would do: plan with --memory {-(-enough // 2**20):.0f}MiB, or with more "
            "devices."
        )
    count = f"{stages} stages" if exactly else f"at most {stages} stages"
    doubt = "" if proven else " was found in time that"
    return (
        f"no cut of {dag.name!r} into {count}{doubt} fits in {format_bytes(int(dag.memory_bytes))} a device (its "
        f"largest node, {dag.names[largest]}, needs up to {format_bytes(int(least[largest]))} by itself). {remedy}"
    )


def _enough_bytes(dag: Dag, low: float, stages: int, *, exactly: bool, deadline: Deadline) -> float | None:
    """Return a memory above ``low`` with which something fits, None if there is no time to find one."""
    high, enough = low, None
    try:
        while not _fits_along_orders(dag, stages, high, exactly=exactly, deadline=deadline):
            low, high = high, high * 2
        enough = high
        while enough > low * 1.01:
            middle = (low + enough) / 2
            fits = _fits_along_orders(dag, stages, middle, exactly=exactly, deadline=deadline)
            low, enough = (low, middle) if fits else (middle, enough)
    except OutOfTimeError:
        pass
    return enough


def _fits_along_orders(dag: Dag, stages: int, memory_bytes: float, *, exactly: bool, deadline: Deadline) -> bool:
    # Only whether it fits is asked: recomputing is free, so that the first way that fits is as good as any.
    seconds = faster_seconds(dag)
    plain, recomputed = replace(dag.plain, seconds=seconds), replace(dag.recomputed, seconds=seconds)
    larger = replace(dag, memory_bytes=memory_bytes, plain=plain, recomputed=recomputed)
    graph = uncontracted(larger, seconds)
    closed = sets_of_orders(graph, orders(graph))
    programme = Programme(
        closed=closed, stages=min(stages, graph.size), limit_s=INFINITE, exactly=exactly, deadline=deadline
    )
    return programme.solve() is not None
