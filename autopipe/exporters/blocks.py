"""Most runtimes cut between the repeated blocks of a model only: which those are, and where a plan cuts them."""

import re
from collections import Counter
from dataclasses import dataclass

from autopipe.documents.graph import Graph
from autopipe.errors import InputError

_NUMBERED = re.compile(r"^((?:[^.]+\.)*?)([0-9]+)(?:\.|$)")


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """The repeated blocks ``path.0``, ``path.1``, ... of a model, as its layers hold them.

    Attributes
    ----------
    path : str
        Where the blocks are, for example ``transformer.h``; empty where the model itself is their list.
    numbers : tuple of int
        The number of each block, ascending.
    of_layer : tuple of frozenset of int
        The blocks of which each layer has a part.
    modules : tuple of tuple of str
        The modules with parameters or buffers that each layer holds, in the order of the forward.
    """

    path: str
    numbers: tuple[int, ...]
    of_layer: tuple[frozenset[int], ...]
    modules: tuple[tuple[str, ...], ...]

    def name(self, number: int) -> str:
        """Return the original name of block ``number``."""
        return f"{self.path}.{number}" if self.path else str(number)

    def torn(self) -> tuple[int, ...]:
        """Return the positions at which a cut would tear a block apart, ascending."""
        inside = {position for first, last in self._spans().values() for position in range(first + 1, last + 1)}
        return tuple(sorted(inside))

    def in_stage(self, begin: int, end: int) -> tuple[int, ...]:
        """Return the blocks that end in layers ``begin`` to ``end - 1``, ascending."""
        return tuple(number for number, (_, last) in self._spans().items() if begin <= last < end)

    def held(self, begin: int, end: int) -> tuple[str, ...]:
        """Return, in the order of the forward, the blocks and the modules outside all blocks in these layers."""
        found: dict[str, None] = {}
        for index in range(begin, end):
            for module in self.modules[index]:
                number = _number(module) if _numbered(module) == self.path else None
                found[module if number is None else self.name(number)] = None
        return tuple(found)

    def _spans(self) -> dict[int, tuple[int, int]]:
        """Return the first and the last layer of each block, by its number, ascending."""
        spans = {}
        for number in self.numbers:
            layers = [index for index, own in enumerate(self.of_layer) if number in own]
            spans[number] = (layers[0], layers[-1])
        return spans


def find_blocks(graph: Graph) -> Blocks:
    """Return the repeated blocks of the model: the outermost numbered modules that most layers belong to.

    Raises
    ------
    InputError
        If no module of the model stands in a numbered list.
    """
    modules = _modules(graph)
    paths = Counter(path for layer in modules for path in {_numbered(name) for name in layer} if path is not None)
    if not paths:
        raise InputError(
            f"{graph.model} has no numbered list of blocks (as in layers.0, layers.1), and this runtime cuts between "
            "such blocks only: export --to torch, which runs the stages themselves."
        )
    path = min(paths, key=lambda name: (-paths[name], name))
    of_layer = tuple(frozenset(_number(name) for name in layer if _numbered(name) == path) for layer in modules)
    numbers = tuple(sorted(frozenset().union(*of_layer)))
    return Blocks(path=path, numbers=numbers, of_layer=of_layer, modules=modules)


def _modules(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Return, per layer, the modules whose parameters and buffers it holds, in the order of the forward."""
    stored = [name for entry in graph.parameters for name in (entry.name, *entry.aliases)]
    targets = {node.name: node.target for node in graph.nodes if node.op in ("call_module", "get_attr")}
    layers = []
    for layer in graph.layers:
        own: dict[str, None] = {}
        for target in (targets[name] for name in layer.nodes if name in targets):
            for name in stored:
                if name == target or name.startswith(f"{target}."):
                    own[name.rpartition(".")[0]] = None
        layers.append(tuple(own))
    return tuple(layers)


def _numbered(name: str) -> str | None:
    match = _NUMBERED.match(name)
    return match[1].rstrip(".") if match else None


def _number(name: str) -> int:
    match = _NUMBERED.match(name)
    assert match is not None
    return int(match[2])
