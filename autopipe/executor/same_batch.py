"""The first stage reads inputs and the last one targets, each in its own process: both must be of one batch."""

import hashlib
import warnings
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from autopipe.executor.request import MicroBatches, Request
from autopipe.transport.endpoint import Endpoint

_SAMPLES = 1024


def warn_of_other_batches(request: Request, endpoint: Endpoint, *, first: int, last: int) -> None:
    """Warn, on the rank of the last stage, if its step got other inputs than that of the first. All ranks call it.

    Only what both were given can be compared, and only a step with targets can mix two batches up.
    """
    mine = {"inputs": _digest((request.args, request.kwargs)), "target": _digest(request.target)}
    notes = endpoint.gather_notes(msgspec.json.encode(mine))[endpoint.replica :: endpoint.replicas]
    if first == last or endpoint.rank != last or mine["target"] is None:
        return
    other = msgspec.json.decode(notes[first])
    what = next((w for w in mine if mine[w] and other[w] and mine[w] != other[w]), None)
    if what is not None:
        warnings.warn(
            f"rank {last}, which reads the targets, was given other {'inputs' if what == 'inputs' else 'targets'} than "
            f"rank {first}, which reads the inputs: targets would not belong to their inputs, and the model would "
            "learn nothing. Let every process draw the same batches in the same order: seed shuffles and random "
            "data alike on all ranks, or give None to ranks that do not read them.",
            stacklevel=2,
        )


def _digest(tree: Any) -> str | None:
    """Return a digest of the tensors in ``tree``, of a sample of their items; None where there are none."""
    is_cut = lambda node: isinstance(node, MicroBatches)  # noqa: E731
    leaves = pytree.tree_leaves(tree, is_leaf=is_cut)
    found = [t for leaf in leaves for t in (pytree.tree_leaves(leaf.items) if is_cut(leaf) else (leaf,))]
    tensors = [tensor for tensor in found if isinstance(tensor, Tensor) and tensor.layout is torch.strided]
    if not tensors:
        return None
    digest = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLES)].cpu().contiguous()
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b"")
    return digest.hexdigest()
