"""Leaves are the modules that a graph calls whole; every other module is open and its forward is written down."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from torch import jit, nn

from autopipe.documents.profile import Profile
from autopipe.errors import InputError
from autopipe.recorder.granularity import Weigher, by_parameters, by_profile, largest_whole

_OPEN_CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
)


@dataclass(frozen=True, kw_only=True)
class Leaves:
    """Which modules are leaves: those asked for by class or name pattern, those forced, torch's own, childless ones.

    So are modules that cost at most ``whole`` (None: none of them), as ``weigh`` counts, but for those ``opened``.
    """

    asked: tuple[type | str, ...] = ()
    forced: frozenset[str] = frozenset()
    whole: int | None = None
    weigh: Weigher = by_parameters
    opened: frozenset[str] = frozenset()

    def is_leaf(self, module: nn.Module, path: str) -> bool:
        """Return whether ``module``, which stands at ``path`` in the model, is called whole."""
        if path in self.forced or _matches(module, path, self.asked):
            return True
        if isinstance(module, _OPEN_CONTAINERS):
            return False
        return isinstance(module, jit.ScriptModule) or _is_torch_own(module) or not any(module.children())

    def is_optional(self, module: nn.Module, path: str) -> bool:
        """Return whether ``module`` is a leaf only because it has no children: its forward can be written down."""
        if path in self.forced or _matches(module, path, self.asked):
            return False
        return not (isinstance(module, jit.ScriptModule) or _is_torch_own(module))

    def is_small(self, module: nn.Module, path: str) -> bool:
        """Return whether ``module`` is called whole only because a cut inside it could not matter."""
        if self.whole is None or path in self.opened or self.is_leaf(module, path):
            return False
        return self.weigh(path, module) <= self.whole


def leaves_of(
    model: nn.Module,
    asked: Sequence[type | str],
    granularity: int | None,
    *,
    profile: Profile | None = None,
    opened: Sequence[str] = (),
) -> Leaves:
    """Return the leaves of a recording of about ``granularity`` layers; with None, as many as modules give.

    The cost of a module is its parameters', or what ``profile`` says of it; those ``opened`` are entered at any cost.

    Raises
    ------
    InputError
        If ``granularity`` is below 1.
    """
    weigh = by_parameters if profile is None else by_profile(model, profile)
    leaves = Leaves(asked=tuple(asked), weigh=cache(weigh), opened=frozenset(opened))
    if granularity is None:
        return leaves
    if granularity < 1:
        raise InputError(f"granularity is {granularity}: give about how many layers the graph should have, 1 or more.")
    whole = largest_whole(model, granularity, weigh=leaves.weigh, is_leaf=leaves.is_leaf, is_open=_is_never_called)
    return replace(leaves, whole=whole)


def _is_never_called(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)


def _matches(module: nn.Module, path: str, asked: Sequence[type | str]) -> bool:
    for entry in asked:
        if isinstance(entry, type):
            if isinstance(module, entry):
                return True
        elif fnmatch.fnmatchcase(path, entry) or fnmatch.fnmatchcase(type(module).__name__, entry):
            return True
    return False


def _is_torch_own(module: nn.Module) -> bool:
    kind = type(module)
    if nn.utils.parametrize.is_parametrized(module):
        kind = kind.__mro__[1]
    return kind.__module__.startswith(("torch.nn.", "torch.ao."))
