"""Every random operation draws from a seed of (seed, step, micro-batch, node): the same for any pipeline.

A generator belongs to a device, or, on the CPU, to the process. So a node that draws first seeds the
generator, and where ranks are threads of one process it holds a lock until it has drawn. What the masks are
then depends on neither stages, order nor recompute.
"""

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from autopipe.documents.arguments import typed

Result = TypeVar("Result")
_FOLDER = "autopipe_seeded"


@typed
def draw_seed(seed: int, step: int, micro_batch: int, node: str) -> int:
    """Return what a node's generator is seeded with for one micro-batch of one step.

    Parameters
    ----------
    seed : int
        The pipeline's.
    step, micro_batch : int
        From 0.
    node : str
        The name of the fx node, as in ``Layer.draws`` of the graph; ``"loss"`` for the loss function.
    """
    return seed_of(seed, step, micro_batch, node)


def seed_of(seed: int, step: int, micro_batch: int, node: str) -> int:
    """Return `draw_seed`, unchecked: for every node of every micro-batch."""
    text = f"{seed}/{step}/{micro_batch}/{node}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Seeds:
    """Seeds the generators of one rank's device, and the CPU's.

    Attributes
    ----------
    seed, step, micro_batch : int
        Where the rank stands; the runtime keeps them up to date.
    """

    def __init__(self, device: torch.device, lock: contextlib.AbstractContextManager[Any]) -> None:
        self.seed = self.step = self.micro_batch = 0
        self.device = device
        self._lock = lock
        self._quiet: set[str] = set()

    def __deepcopy__(self, memo: Any) -> "Seeds":
        # A copy of a stage, as for an average of weights, runs on the same rank.
        return self

    def call(self, node: str, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Return ``function(*args, **kwargs)``, which draws as ``node``."""
        with self._lock:
            self._sow(node)
            return function(*args, **kwargs)

    def call_perhaps(self, node: str, function: Callable[..., Result], *args: Any) -> Result:
        """Return ``function(*args)``, of which it is not known if it draws: once it did not, it is left alone."""
        if node in self._quiet:
            return function(*args)
        with self._lock:
            self._sow(node)
            before = generator_states(self.device)
            result = function(*args)
            if all(map(torch.equal, before, generator_states(self.device))):
                self._quiet.add(node)
            return result

    def _sow(self, node: str) -> None:
        value = seed_of(self.seed, self.step, self.micro_batch, node)
        torch.default_generator.manual_seed(value)
        if self.device.type != "cpu":
            _device_generator(self.device).manual_seed(value)


class Seeded(nn.Module):
    """Calls a module, function or method of the stage that draws, from its own seed.

    The module is no submodule of this one: it keeps its place and names in the stage.
    """

    def __init__(self, node: str, function: Callable[..., Any], seeds: Seeds) -> None:
        super().__init__()
        self._node = node
        self._function = (function,)
        self._seeds = seeds

    @property
    def wrapped(self) -> Callable[..., Any]:
        """What is called."""
        return self._function[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Seed, and call."""
        return self._seeds.call(self._node, self._function[0], *args, **kwargs)


def seed_draws(module: fx.GraphModule, names: Collection[str], seeds: Seeds) -> None:
    """Let the nodes ``names`` of ``module`` draw from seeds; a module with none of them stays as it is."""
    drawing = [node for node in module.graph.nodes if node.name in names]
    for node in drawing:
        target = f"{_FOLDER}.{node.name}"
        module.add_submodule(target, Seeded(node.name, _callable(module, node), seeds))
        node.op, node.target = "call_module", target
    if drawing:
        module.recompile()


@contextlib.contextmanager
def kept_generators(devices: Sequence[torch.device], seed: int) -> Iterator[None]:
    """Seed the generators for what draws without a seed of its own, and put them back at the end."""
    before = [generator_states(device) for device in devices]
    torch.default_generator.manual_seed(seed)
    for device in devices:
        if device.type != "cpu":
            _device_generator(device).manual_seed(seed)
    try:
        yield
    finally:
        for device, states in zip(devices, before, strict=True):
            torch.default_generator.set_state(states[0])
            if device.type != "cpu":
                _device_generator(device).set_state(states[1])


def generator_states(device: torch.device) -> tuple[Tensor, ...]:
    """Return the states of the CPU's generator and, if it is another, of the device's."""
    state = torch.default_generator.get_state()
    return (state,) if device.type == "cpu" else (state, _device_generator(device).get_state())


def _device_generator(device: torch.device) -> torch.Generator:
    module = torch.get_device_module(device)
    generators = getattr(module, "default_generators", ())
    if generators:
        return generators[device.index or 0]
    return module._get_default_mps_generator()


def _callable(module: fx.GraphModule, node: fx.Node) -> Callable[..., Any]:
    if node.op == "call_module":
        return module.get_submodule(str(node.target))
    if node.op == "call_method":
        name = str(node.target)
        return lambda owner, *args, **kwargs: getattr(owner, name)(*args, **kwargs)
    assert callable(node.target)
    return node.target
