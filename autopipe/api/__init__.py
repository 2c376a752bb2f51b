"""The public names: functions that take an ordinary model or a document and give the next document, or a `Pipeline`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autopipe.api.documents import capture, partition, profile
from autopipe.api.training import pipeline, split

if TYPE_CHECKING:
    from autopipe.checkpoints.plain import load_checkpoint
    from autopipe.executor.grad_scaler import GradScaler
    from autopipe.executor.pipeline import Pipeline
    from autopipe.executor.request import Arguments, MicroBatches
    from autopipe.executor.sampler import ReplicaSampler
    from autopipe.executor.seeds import draw_seed

__all__ = [
    "Arguments",
    "GradScaler",
    "MicroBatches",
    "Pipeline",
    "ReplicaSampler",
    "capture",
    "draw_seed",
    "load_checkpoint",
    "partition",
    "pipeline",
    "profile",
    "split",
]

_HOMES = {
    "Arguments": "autopipe.executor.request",
    "GradScaler": "autopipe.executor.grad_scaler",
    "MicroBatches": "autopipe.executor.request",
    "Pipeline": "autopipe.executor.pipeline",
    "ReplicaSampler": "autopipe.executor.sampler",
    "draw_seed": "autopipe.executor.seeds",
    "load_checkpoint": "autopipe.checkpoints.plain",
}


def __getattr__(name: str) -> Any:
    # These need torch, and importing this module must not.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
