"""Leaves are the modules that a graph calls whole; every other module is open and its forward is written down."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from torch import jit, nn

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
    """Which modules are leaves: those asked for by class or name pattern, those forced, torch's own, childless ones."""

    asked: tuple[type | str, ...] = ()
    forced: frozenset[str] = frozenset()

    def is_leaf(self, module: nn.Module, path: str) -> bool:
        """Return whether ``module``, which stands at ``path`` in the model, is called whole."""
        if path in self.forced or _matches(module, path, self.asked):
            return True
        if isinstance(module, _OPEN_CONTAINERS):
            return False
        return isinstance(module, jit.ScriptModule) or _is_torch_own(module) or not any(module.children())


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
