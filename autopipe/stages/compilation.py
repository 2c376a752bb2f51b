"""Stages are compiled, whole or layer by layer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from autopipe.errors import InputError
from autopipe.stages.segment import Segment, insert_segments


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What of a stage is compiled by itself (``stage`` or ``layer``), and what else `torch.compile` is given."""

    per: str = "stage"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.per not in ("stage", "layer"):
            raise InputError(f"compile={self.per!r} is neither 'stage' nor 'layer': pass one of them.")

    def apply(self, module: fx.GraphModule, layers: Mapping[str, Sequence[str]]) -> None:
        """Compile a stage at its first call; an option that `torch.compile` does not take is an `InputError`.

        A stage with layers that are recomputed is compiled layer by layer: its second runs need the borders.

        Parameters
        ----------
        layers : mapping
            The names of the layers that are not recomputed -> the names of their nodes.
        """
        try:
            self._apply(module, layers)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"torch.compile does not take compile_options={dict(self.options)}: {error}") from error

    def _apply(self, module: fx.GraphModule, layers: Mapping[str, Sequence[str]]) -> None:
        recomputed = [part for part in module.modules() if isinstance(part, Segment)]
        for part in module.modules():
            if hasattr(part, "wrapped"):
                # It seeds the generator, which no graph can hold.
                part.forward = torch.compiler.disable(part.forward)
        if self.per == "stage" and not recomputed:
            module.compile(**self.options)
            return
        insert_segments(module, layers, lambda root, graph, layer: Segment(root, graph, layer=layer))
        for part in module.modules():
            if isinstance(part, Segment):
                part.compile_function(**self.options)
