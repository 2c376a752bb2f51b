"""autopipe takes an ordinary PyTorch model and trains it as a pipeline over several devices.

The public names are loaded when they are first used, so that ``import autopipe`` never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopipe.api import (
        Arguments,
        GradScaler,
        MicroBatches,
        Pipeline,
        ReplicaSampler,
        capture,
        draw_seed,
        load_checkpoint,
        partition,
        pipeline,
        profile,
        split,
    )
    from autopipe.documents.graph import Graph
    from autopipe.documents.plan import Plan
    from autopipe.documents.profile import Profile
    from autopipe.documents.timeline import Timeline
    from autopipe.errors import (
        AutopipeError,
        CaptureError,
        DocumentError,
        InfeasibleError,
        InputError,
        MismatchError,
        ProfileError,
        ScheduleError,
        StepError,
    )
    from autopipe.hardware.cluster import Cluster

__version__ = "0.1.0"

__all__ = [
    "Arguments",
    "AutopipeError",
    "CaptureError",
    "Cluster",
    "DocumentError",
    "GradScaler",
    "Graph",
    "InfeasibleError",
    "InputError",
    "MicroBatches",
    "MismatchError",
    "Pipeline",
    "Plan",
    "Profile",
    "ProfileError",
    "ReplicaSampler",
    "ScheduleError",
    "StepError",
    "Timeline",
    "capture",
    "draw_seed",
    "load_checkpoint",
    "partition",
    "pipeline",
    "profile",
    "split",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_home(name)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _home(name: str) -> str:
    if name.endswith("Error"):
        return "autopipe.errors"
    if name in ("Graph", "Plan", "Profile", "Timeline"):
        return f"autopipe.documents.{name.lower()}"
    return "autopipe.hardware.cluster" if name == "Cluster" else "autopipe.api"
