"""The plain model repeats the pipeline's steps in one thread, for the comparison."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from autopipe.cli.demo.model import CONTEXT, LEARNING_RATE, build, next_byte_loss
from autopipe.cli.demo.text import draw_batch, read_text


class PlainRun(NamedTuple):
    """The losses of all steps, and the gradients of the first and the last: step -> name -> gradient."""

    losses: tuple[float, ...]
    gradients: dict[int, dict[str, Tensor]]


def train_plain(
    steps: int, *, batch: int, micro_batch: int, progress: Callable[[str, float], None] | None = None
) -> PlainRun:
    """Train the unsplit model in one thread, micro-batch by micro-batch, and return what the pipeline must give."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, text = build(), read_text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, gradients = [], {}
    for step in range(steps):
        inputs, target = draw_batch(text, step=step, batch=batch, time=CONTEXT)
        total: Tensor | None = None
        for x, y in zip(inputs.split(micro_batch), target.split(micro_batch), strict=True):
            part = next_byte_loss(model(x), y) * (len(x) / batch)
            part.backward()
            total = part.detach() if total is None else total + part.detach()
        if step in (0, steps - 1):
            gradients[step] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total if total is not None else 0.0))
        if progress is not None:
            progress(f"step {step + 1}", (step + 1) / steps)
    torch.set_num_threads(threads)
    return PlainRun(tuple(losses), gradients)
