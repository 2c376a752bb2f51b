"""Pipelines of the test models over thread-ranks, in one line."""

import copy
from typing import Any

import torch
from torch import nn

from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record
from autopipe.schedules.named import make
from tests.reference import even_bounds


def thread_pipe(
    model: nn.Module,
    example: tuple[Any, ...],
    *,
    stages: int,
    micro_batches: int,
    loss_fn: Any = None,
    schedule: str = "1f1b",
    bounds: tuple[int, ...] | None = None,
    virtual: int = 1,
    recompute: bool = False,
    recomputed: tuple[str, ...] = (),
    **options: Any,
) -> Pipeline:
    """Return ``model`` as a pipeline of ``stages`` thread-ranks, cut evenly unless ``bounds`` say otherwise.

    With ``recompute`` every layer is recomputed, else those of ``recomputed``.
    """
    recording = record(model, example)
    layout = Layout(
        bounds=bounds or even_bounds(len(recording.graph.layers), stages * virtual),
        stage_ranks=make(schedule, stages=stages, micro_batches=1, virtual=virtual).stage_ranks,
        schedule=schedule,
        micro_batches=micro_batches,
        virtual_stages=virtual,
        recompute=tuple(layer.name for layer in recording.graph.layers) if recompute else recomputed,
    )
    return Pipeline(recording.module, recording.graph, layout, loss_fn=loss_fn, ranks=stages, **options)


def twins(build: Any, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    """Return two equal models."""
    torch.manual_seed(seed)
    model = build()
    return model, copy.deepcopy(model)
