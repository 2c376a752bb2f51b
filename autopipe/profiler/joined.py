"""The pieces of a model run as one undivided step, and the clock is marked where one ends and the next begins.

Forward: marks stand around every piece, and around an empty one behind it::

    | piece 0 | empty | piece 1 | empty | ... | loss

Backward: two hooks stand on what crosses a boundary, and mark the clock one after the other; they fire when
autograd is through with the later piece, because it takes the nodes that were made last first::

    loss | hook hook | piece 1 | hook hook | piece 0 |

Empty pieces and the gaps between hooks are the seams: what measuring itself adds to every piece.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from autopipe.profiler.layers import Example, Loss, Piece, Sweep
from autopipe.profiler.timer import Clock


@dataclass(frozen=True, kw_only=True)
class Marks:
    """Where one step had the clock marked; durations may be asked for once the clock has finished.

    ``spans`` are (sweep, piece, begin, end), the loss one past the last piece; ``seams`` are (sweep, begin, end).
    """

    spans: tuple[tuple[Sweep, int, Any, Any], ...]
    seams: tuple[tuple[Sweep, Any, Any], ...]


def joined_step(pieces: Sequence[Piece], loss: Loss, example: Example, clock: Clock) -> Marks:
    """Run one training step of ``pieces`` and return its marks.

    Unlike a `Chain`, nothing is detached and autograd is entered once, as in the unsplit model. What runs
    between two pieces is kept short, because it drives the model's own instructions out of the caches: after a
    seam with a detour through custom autograd functions, the first operator took 5 to 7 us longer on a CPU.
    """
    torch.clear_autocast_cache()
    mark = clock.mark
    forward: list[tuple[Any, Any, Any]] = []
    # Mark, then the piece whose backward begins: None says that the later piece's ends.
    backward: list[tuple[Any, int | None]] = []
    hooks = [_hooks(index, backward, mark) for index in range(len(pieces))]
    values: dict[str, Any] = {}
    output: Any = None
    for index, piece in enumerate(pieces):
        args: Any = example.args if index == 0 else [values[name] for name in piece.inputs]
        kwargs = example.kwargs if index == 0 else {}
        for name in piece.released:
            del values[name]
        begin = mark()
        output = piece.module(*args, **kwargs)
        end = mark()
        EMPTY(output)
        forward.append((begin, end, mark()))
        is_last = index == len(pieces) - 1
        _watch(pytree.tree_leaves(output) if is_last else output, args, hooks[index])
        del args
        if not is_last:
            values.update(zip(piece.outputs, output, strict=True))
            output = None
    begin = mark()
    result = loss(output, example.target)
    forward.append((begin, mark(), None))
    output = None
    backward.append((mark(), len(pieces)))
    result.backward()
    backward.append((mark(), None))
    return _marks(forward, backward)


class _Empty(nn.Module):
    """A piece that does nothing."""

    def forward(self, x: Any) -> tuple[Any]:
        return (x,)


EMPTY: Callable[..., Any] = fx.symbolic_trace(_Empty())


def _hooks(index: int, backward: list[tuple[Any, int | None]], mark: Callable[[], Any]) -> tuple[Any, Any]:
    def first(_: Tensor) -> None:
        backward.append((mark(), None))

    def second(_: Tensor) -> None:
        backward.append((mark(), index))

    return first, second


def _watch(outputs: Sequence[Any], args: Sequence[Any], hooks: tuple[Any, Any]) -> None:
    """Have the clock marked twice when autograd has the gradient of something that a piece made.

    What it passed on as it was is not its own, and is watched already.
    """
    for value in outputs:
        if isinstance(value, Tensor) and value.requires_grad and not any(value is known for known in args):
            for hook in hooks:
                value.register_hook(hook)


def _marks(forward: Sequence[tuple[Any, Any, Any]], backward: Sequence[tuple[Any, int | None]]) -> Marks:
    """Return the marks of the forward, (begin, end, end of the empty piece), and of the backward by piece."""
    spans = [(Sweep.FORWARD, index, begin, end) for index, (begin, end, _) in enumerate(forward)]
    seams = [(Sweep.FORWARD, end, after) for _, end, after in forward if after is not None]
    for (begin, index), (end, _) in pairwise(backward):
        if index is None:
            seams.append((Sweep.BACKWARD, begin, end))
        else:
            spans.append((Sweep.BACKWARD, index, begin, end))
    return Marks(spans=tuple(spans), seams=tuple(seams))
