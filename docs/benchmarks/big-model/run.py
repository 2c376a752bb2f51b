"""Four ranks materialise a model of 3 billion parameters from the meta device and run one forward-only step.

Start it with ``torchrun --nproc-per-node 4 docs/benchmarks/big-model/run.py``.
"""

import resource
import time

import torch
import torch.distributed as dist
from model import CONTEXT, layout_of, recorded_on_meta, token_loss

from autopipe.executor.pipeline import Pipeline
from autopipe.stages.materialise import filling

WIDTH, BATCH, TIME, SEED = 2560, 4, 16, 0


def resident_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ids = torch.randint(0, 50_000, (BATCH, TIME + 1), generator=torch.Generator().manual_seed(1))
    assert TIME <= CONTEXT
    start = time.perf_counter()
    model, recording = recorded_on_meta(ids[:, :-1], dtype=torch.bfloat16, width=WIDTH)
    layout = layout_of(recording, dist.get_world_size(), BATCH)
    recorded_s, before = time.perf_counter() - start, resident_bytes()
    torch.manual_seed(SEED)
    start = time.perf_counter()
    pipe = Pipeline(
        recording.module,
        recording.graph,
        layout,
        loss_fn=token_loss,
        materialise=filling(model, weights=None, initialise=None),
    )
    materialised_s, after = time.perf_counter() - start, resident_bytes()
    start = time.perf_counter()
    loss = pipe.evaluate(ids[:, :-1], target=ids[:, 1:])
    step_s = time.perf_counter() - start
    held = sum(parameter.numel() * parameter.element_size() for parameter in pipe.parameters())
    elsewhere = sum(parameter.numel() for parameter in model.parameters() if parameter.is_meta)
    whole = sum(parameter.numel() for parameter in model.parameters())
    row = (pipe.rank, held, after - before, resident_bytes() - before, elsewhere, recorded_s, materialised_s, step_s)
    rows: list = [None] * dist.get_world_size()
    dist.all_gather_object(rows, row)
    if pipe.rank == 0:
        print(f"{whole / 1e9:.3f} billion parameters, loss {loss.item():.4f}")
        print("rank  held GiB  grown by GiB  with the step GiB  on meta (billion)  record s  materialise s  step s")
        for rank, held, grown, most, meta, *seconds in rows:
            sizes = f"{held / 2**30:8.3f}  {grown / 2**30:12.3f}  {most / 2**30:17.3f}  {meta / 1e9:17.3f}"
            print(f"{rank:4}  {sizes}  {seconds[0]:8.1f}  {seconds[1]:13.1f}  {seconds[2]:6.1f}")
        print(f" all  {sum(row[1] for row in rows) / 2**30:8.3f}  {sum(row[2] for row in rows) / 2**30:12.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
