"""One rank of the demo's profile: torchrun starts it twice, so that both measure at once, as they will train."""

import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from autopipe.api import profile
from autopipe.cli.demo.model import CONTEXT, build, next_byte_loss
from autopipe.cli.demo.text import draw_batch, read_text
from autopipe.documents.files import save
from autopipe.errors import ProfileError
from autopipe.executor.launch import join_group
from autopipe.profiler.ranks import measure_ranks

PROFILE = "profile.json"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank is told: where the profile goes, the micro-batch sizes, and the seconds for timing."""

    folder: str
    micro_batches: tuple[int, ...]
    budget_s: float


class Doing(msgspec.Struct, frozen=True, kw_only=True):
    """What the first rank says while it measures, one JSON line."""

    doing: str
    share: float


def measure(task: Task) -> None:
    """Measure the demo's model on every rank at the same time, then the links; the first rank writes the profile."""
    torch.set_num_threads(1)
    device = join_group()
    first = dist.get_rank() == 0
    example = draw_batch(read_text(), step=0, batch=max(task.micro_batches), time=CONTEXT)

    def tell(doing: str, share: float) -> None:
        if first:
            print(msgspec.json.encode(Doing(doing=doing, share=share)).decode(), flush=True)

    found = measure_ranks(
        lambda: profile(
            build(),
            (example.inputs,),
            target=example.target,
            loss_fn=next_byte_loss,
            micro_batches=task.micro_batches,
            budget_s=task.budget_s,
            progress=tell,
        ),
        device,
    )
    if not found.links:
        raise ProfileError(
            "the link between the two processes could not be told: larger messages did not take longer, in three "
            "attempts. Run the demo again on a quieter machine."
        )
    if first:
        save(found, Path(task.folder) / PROFILE)


if __name__ == "__main__":
    measure(msgspec.json.decode(sys.argv[1], type=Task))
