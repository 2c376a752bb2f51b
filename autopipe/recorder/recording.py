"""An ordinary model becomes a runnable fx module of its own submodules, and the document that describes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from autopipe.documents.graph import Graph
from autopipe.documents.profile import Profile
from autopipe.errors import CaptureError
from autopipe.recorder.batch import find_batch
from autopipe.recorder.caches import no_generation_cache
from autopipe.recorder.check import find_difference
from autopipe.recorder.example import bind, map_tensors
from autopipe.recorder.functions import is_random
from autopipe.recorder.layers import group_layers
from autopipe.recorder.leaves import leaves_of
from autopipe.recorder.notes import note_of
from autopipe.recorder.rebuilding import rebuild
from autopipe.recorder.settling import settle, terms_of
from autopipe.recorder.snapshot import preserved
from autopipe.recorder.stand_ins import fakes_on_meta, holds_fakes, is_weightless, on_meta, stand_in
from autopipe.recorder.writing import write_document

_ATTEMPTS = 8


@dataclass(frozen=True)
class Recording:
    """A recorded model: the module to run, and the document to plan with.

    ``demoted`` gives the reason for each module that had to become a leaf, by its path; ``unchecked`` says why the
    graph was not compared with the model, and is None where it was.
    """

    module: fx.GraphModule
    graph: Graph
    demoted: Mapping[str, str] = field(default_factory=dict)
    unchecked: str | None = None


def record(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    leaf: Sequence[type | str] = (),
    check: bool = True,
    specialise: bool = False,
    granularity: int | None = None,
    profile: Profile | None = None,
    opened: Sequence[str] = (),
    batch_dims: Mapping[str, int | None] | None = None,
) -> Recording:
    """Run ``model`` on an example and return it as a graph of its own submodules.

    The model runs eagerly, once for each of: the example, another batch size, another length of sequences (where
    the example has them), the other of train and eval.
    Parameters and modules are shared, never copied, and the model is left as it was found.

    Parameters
    ----------
    args, kwargs
        The example: one call of the model.
    leaf : sequence of type or str
        Modules to call whole: classes, or patterns of module paths or class names (``"blocks.*.attn"``).
    check : bool
        Compare the recorded graph with the model, outputs and gradients, before returning it.
    specialise : bool
        Let the model itself (not its modules: they are called whole) read values of tensors, where it would be
        refused. The graph holds for the values of the example only, and raises an `InputError` on others.
    granularity : int, optional
        About how many layers to make of the model: modules whose share of the cost is small stay whole, so
        that the graph is small and runs fast. By default every module of the model is entered.
    profile : Profile, optional
        What modules cost, for ``granularity``; by default their parameters tell.
    opened : sequence of str
        Paths of modules that ``granularity`` would keep whole, to enter all the same.
    batch_dims : mapping of str to int or None, optional
        In which dimension arguments carry the batch, by name, None for those that do not; what is not given is
        found by `find_batch`.

    Notes
    -----
    A model on the meta device, or built under a mode of fake tensors, is recorded without its memory, and not
    checked: its leaves run where they are, and what is small between them is computed with zeros.

    A value that is read only to raise or to warn (``if labels.max() >= n: raise ...``) shapes nothing. Where a tensor
    is the whole condition of the ``raise``, the graph checks it; other such lines are left out of the graph.

    Raises
    ------
    InputError
        If the example does not fit the model's forward.
    CaptureError
        If the model cannot be written down: the message names module, file, line and reason.
    """
    if holds_fakes(model):
        real = map_tensors((tuple(args), dict(kwargs or {})), on_meta)
        with fakes_on_meta(model):
            made = record(
                model,
                *real,
                leaf=leaf,
                specialise=specialise,
                granularity=granularity,
                profile=profile,
                opened=opened,
                batch_dims=batch_dims,
            )
        return replace(made, module=rebuild(model, made.graph))
    with no_generation_cache(model):
        example = find_batch(model, bind(model, args, kwargs or {}), batch_dims or {})
    unchecked = None if check else "not asked for"
    if is_weightless(model):
        example = replace(example, values={name: map_tensors(item, stand_in) for name, item in example.values.items()})
        unchecked = (
            "the model has no memory (it is fake, or on the meta device), so that it computes nothing to compare with"
        )
    leaves = leaves_of(model, leaf, granularity, profile=profile, opened=opened)
    terms = terms_of(model, example, leaves, specialises=specialise)
    with no_generation_cache(model), torch.enable_grad():
        for _ in range(_ATTEMPTS):
            with preserved(model):
                graph, terms = settle(terms)
            remove_unread(graph)
            groups = group_layers(graph, model)
            document = write_document(graph, groups, model, terms.example, batch_is_free=terms.frees_batch)
            module = rebuild(model, document)
            difference = None if unchecked else find_difference(module, terms)
            if difference is None:
                return Recording(module, document, terms.demoted, unchecked)
            if difference.is_of_length:
                terms = replace(terms, frees_length=False, fixes_length=True)
            elif difference.is_of_batch:
                terms = replace(terms, frees_batch=False)
            elif difference.owner:
                terms = terms.with_leaf(difference.owner, f"its recording differs from it: {difference.sentence}")
            else:
                raise CaptureError(difference.sentence)
    raise CaptureError(
        f"the graph of {type(model).__name__} still differs from it after {_ATTEMPTS} recordings, each with more "
        "modules called whole. Pass the module that draws random numbers or keeps state of its own as leaf=."
    )


def remove_unread(graph: fx.Graph) -> None:
    """Remove what is computed and never read, unless it changes memory, draws random numbers or is a module."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op not in ("call_function", "call_method", "get_attr"):
            continue
        if not node.is_impure() and not note_of(node).writes and not is_random(node.target):
            graph.erase_node(node)
