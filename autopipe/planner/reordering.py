"""A profile's layers in another order in which the model can run, so that stages on its graph lie in a row."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from autopipe.documents.graph import ForbiddenCut, Graph, Layer
from autopipe.documents.profile import Profile
from autopipe.errors import InputError


def reordered(profile: Profile, order: Sequence[int]) -> Profile:
    """Return ``profile`` with layer ``order[i]`` in place i, its graph too: a plan for it is a plan for the model.

    Raises
    ------
    InputError
        If a layer would run before one that it needs, or groups of layers that no cut may part would be parted.
    """
    place = {layer: position for position, layer in enumerate(order)}
    if sorted(place) != list(range(len(profile.layers))) or len(order) != len(place):
        raise InputError(f"an order names each of the {len(profile.layers)} layers once; this one does not.")
    for first, second in must_precede(profile):
        if place[first] > place[second]:
            names = profile.layers[first].name, profile.layers[second].name
            raise InputError(f"layer {names[1]!r} cannot run before {names[0]!r}. Keep them in the recorded order.")
    if list(order) == list(range(len(order))):
        return profile
    graph = None if profile.graph is None else _reordered_graph(profile.graph, order, place)
    values = [
        msgspec.structs.replace(
            value,
            producer=place[value.producer],
            consumers=_placed(value.consumers, place),
            readers=_placed(value.readers, place),
            saved_at=None if value.saved_at is None else place[value.saved_at],
        )
        for value in profile.values
    ]
    forbidden = _forbidden(profile.forbidden_cuts, place)
    return msgspec.structs.replace(
        profile,
        layers=tuple(profile.layers[layer] for layer in order),
        values=tuple(sorted(values, key=lambda value: value.producer)),
        shared=tuple(
            msgspec.structs.replace(shared, layers=_placed(shared.layers, place)) for shared in profile.shared
        ),
        work=tuple(msgspec.structs.replace(work, layer=place.get(work.layer, work.layer)) for work in profile.work),
        forbidden_cuts=tuple(sorted(forbidden)),
        graph=graph,
        graph_fingerprint=profile.graph_fingerprint if graph is None else graph.fingerprint,
    )


def must_precede(profile: Profile) -> Iterator[tuple[int, int]]:
    """Yield pairs of layers whose order is kept.

    A value's producer runs before its consumers. Layers that read one storage, parameter or buffer keep their
    order, because a later one may write to it in place. Inputs stay in the first layer and the output in the last.
    What no cut may part runs in the recorded order, with nothing in between.
    """
    last = len(profile.layers) - 1
    for layer in range(1, last + 1):
        yield 0, layer
    for layer in range(last):
        yield layer, last
    for value in profile.values:
        for consumer in value.consumers:
            yield value.producer, consumer
        yield from pairwise(sorted({*value.consumers, *value.readers}))
    for shared in profile.shared:
        yield from pairwise(shared.layers)
    readers: dict[str, list[int]] = {}
    for index, held in enumerate(profile.graph.layers if profile.graph else ()):
        for name in (*held.parameters, *held.buffers):
            readers.setdefault(name, []).append(index)
    for layers in readers.values():
        yield from pairwise(layers)
    for position in profile.forbidden_cuts:
        if 0 < position <= last:
            yield position - 1, position


def blocks(profile: Profile) -> tuple[tuple[int, ...], ...]:
    """Return the layers in groups that no legal cut parts, in the recorded order."""
    forbidden = set(profile.forbidden_cuts)
    found: list[list[int]] = []
    for layer in range(len(profile.layers)):
        if layer in forbidden and found:
            found[-1].append(layer)
        else:
            found.append([layer])
    return tuple(map(tuple, found))


def order_of_stages(edges: Sequence[tuple[int, int]], stage_of: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes stage by stage, each after those that it follows, and otherwise as they are numbered."""
    missing = [0] * len(stage_of)
    followers: dict[int, list[int]] = {}
    for first, second in set(edges):
        missing[second] += 1
        followers.setdefault(first, []).append(second)
    ready = [(stage_of[node], node) for node, count in enumerate(missing) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for follower in followers.get(node, ()):
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, (stage_of[follower], follower))
    return tuple(order)


def _reordered_graph(graph: Graph, order: Sequence[int], place: dict[int, int]) -> Graph:
    by_name = {node.name: node for node in graph.nodes}
    layers: list[Layer] = [graph.layers[layer] for layer in order]
    values = [
        msgspec.structs.replace(value, producer=place[value.producer], consumers=_placed(value.consumers, place))
        for value in graph.values
    ]
    reasons = {cut.position: cut.reason for cut in graph.forbidden_cuts}
    return msgspec.structs.replace(
        graph,
        nodes=tuple(by_name[name] for layer in layers for name in layer.nodes),
        layers=tuple(layers),
        values=tuple(sorted(values, key=lambda value: value.producer)),
        forbidden_cuts=tuple(
            ForbiddenCut(position=new, reason=reasons[old]) for new, old in sorted(_forbidden(reasons, place).items())
        ),
    )


def _forbidden(positions: Sequence[int] | dict[int, str], place: dict[int, int]) -> dict[int, int]:
    """Return forbidden cuts by their new positions, with the old ones: the layers on both sides stay neighbours."""
    found = {}
    for position in positions:
        if 0 < position < len(place):
            if place[position] != place[position - 1] + 1:
                raise InputError(f"no cut may part layers {position - 1} and {position}, and this order does.")
            found[place[position]] = position
    return found


def _placed(layers: Sequence[int], place: dict[int, int]) -> tuple[int, ...]:
    return tuple(sorted(place[layer] for layer in layers))
