"""The Python code of a recorded graph: modules are found without detours, and an error closes every region."""

from typing import Any

from torch import fx
from torch.fx.graph import CodeGen, _format_target

from autopipe.recorder.glue import enter_autocast, enter_grad_mode, modes_kept


class RecordedCode(CodeGen):
    """Generates the forward of a recorded graph.

    Notes
    -----
    ``self.layers.3.attention`` is three calls of ``nn.Module.__getattr__``, which for layers of 10 us took a quarter
    of the time; a look into the tables of modules takes none of it and means the same.
    """

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self._has_regions = any(node.target in (enter_autocast, enter_grad_mode) for node in graph.nodes)
        self._reads = {
            node.name: (_format_target("self", str(node.target)), _direct(node))
            for node in graph.nodes
            if node.op in ("call_module", "get_attr")
        }
        self._body_transformer = self._with_direct_reads

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **options: Any) -> str:
        """Return the first lines of the forward: one that raises inside a region leaves torch's modes as they were."""
        lines = super().gen_fn_def(free_vars, maybe_return_annotation, **options)
        return "@autopipe_modes_kept()\n" + lines if self._has_regions else lines

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Return what the generated code reads by name."""
        return [*super().additional_globals(), ("autopipe_modes_kept", modes_kept)]

    def _with_direct_reads(self, body: list[str]) -> list[str]:
        """Return the lines of a forward with every module and attribute read from its owner's tables."""
        return [self._line(line) for line in body]

    def _line(self, line: str) -> str:
        name, _, read = line.partition(" = ")
        before, after = self._reads.get(name, ("", ""))
        rest = read.removeprefix(before)
        return f"{name} = {after}{rest}" if before and rest != read and rest[:1] in ("", "(") else line


def _direct(node: fx.Node) -> str:
    """Return the expression by which a forward finds the module or the tensor that ``node`` reads."""
    *owners, name = str(node.target).split(".")
    if node.op == "call_module":
        owners.append(name)
    owner = "self" + "".join(f'._modules["{part}"]' for part in owners)
    return owner if node.op == "call_module" else _format_target(owner, name)
