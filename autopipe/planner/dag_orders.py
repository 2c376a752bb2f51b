"""Topological orders of a graph: cut into intervals, each gives a first plan to improve on."""

from collections.abc import Callable, Iterator

from autopipe.planner.dag_contraction import Contraction


def orders(contraction: Contraction) -> Iterator[tuple[int, ...]]:
    """Yield orders of the groups: as listed, branch by branch from either end, and with little open."""
    yield tuple(range(contraction.size))
    age: dict[int, int] = {}

    def newest(group: int, step: int) -> tuple[float, int]:
        return -age.setdefault(group, step), group

    yield _order(contraction.predecessors, contraction.successors, newest)
    age.clear()
    yield _order(contraction.successors, contraction.predecessors, newest)[::-1]
    yield _least_open(contraction)


def _least_open(contraction: Contraction) -> tuple[int, ...]:
    """Return the order in which each next group opens the least, less what it closes."""
    left = [len(ends) for ends, _ in contraction.nets]

    def opened_s(group: int, step: int) -> tuple[float, int]:
        total = 0.0
        for net in contraction.nets_of[group]:
            ends, seconds = contraction.nets[net]
            total += seconds * ((left[net] == len(ends)) - (left[net] == 1))
        return total, group

    def take(group: int) -> None:
        for net in contraction.nets_of[group]:
            left[net] -= 1

    return _order(contraction.predecessors, contraction.successors, opened_s, take)


def _order(
    predecessors: tuple[tuple[int, ...], ...],
    successors: tuple[tuple[int, ...], ...],
    preference: Callable[[int, int], tuple[float, int]],
    take: Callable[[int], None] | None = None,
) -> tuple[int, ...]:
    """Return the groups, each after its predecessors, always the ready one that is lowest in ``preference``."""
    missing = [len(others) for others in predecessors]
    ready = [group for group, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        group = min(ready, key=lambda candidate: preference(candidate, len(order)))
        ready.remove(group)
        order.append(group)
        if take is not None:
            take(group)
        for follower in successors[group]:
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    return tuple(order)
