"""An ordinary model becomes a runnable fx module of its own submodules, and the document that describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from autopipe.documents.graph import Graph
from autopipe.recorder.caches import no_generation_cache
from autopipe.recorder.check import check_recording
from autopipe.recorder.example import bind
from autopipe.recorder.layers import group_layers
from autopipe.recorder.leaves import Leaves
from autopipe.recorder.rebuilding import rebuild
from autopipe.recorder.settling import remove_unread, settle
from autopipe.recorder.snapshot import preserved
from autopipe.recorder.writing import write_document


@dataclass(frozen=True)
class Recording:
    """A recorded model: the module to run, and the document to plan with.

    ``demoted`` gives the reason for each module that had to become a leaf, by its path.
    """

    module: fx.GraphModule
    graph: Graph
    demoted: Mapping[str, str] = field(default_factory=dict)


def record(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    leaf: Sequence[type | str] = (),
    check: bool = True,
) -> Recording:
    """Run ``model`` on an example and return it as a graph of its own submodules.

    The model runs eagerly, once for each of: the example, another batch size, the other of train and eval.
    Parameters and modules are shared, never copied, and the model is left as it was found.

    Parameters
    ----------
    args, kwargs
        The example: one call of the model. Every tensor whose leading size is that of the first carries the batch.
    leaf : sequence of type or str
        Modules to call whole: classes, or patterns of module paths or class names (``"blocks.*.attn"``).
    check : bool
        Compare the recorded graph with the model, outputs and gradients, before returning it.

    Raises
    ------
    InputError
        If the example does not fit the model's forward.
    CaptureError
        If the model cannot be written down: the message names module, file, line and reason.
    """
    example = bind(model, args, kwargs or {})
    with no_generation_cache(model):
        with preserved(model):
            settled = settle(model, example, Leaves(asked=tuple(leaf)))
        remove_unread(settled.graph)
        groups = group_layers(settled.graph, model)
        document = write_document(settled.graph, groups, model, batch_is_free=settled.batch_is_free)
        module = rebuild(model, document)
        if check:
            check_recording(model, module, example, settled)
    return Recording(module, document, settled.demoted)
