"""Trains a small model for many steps on two processes and writes down what each holds, every so many steps.

torchrun --nproc-per-node 2 docs/benchmarks/soak/soak.py [--steps 10000] [--every 200] [--output FILE]
"""

import argparse
import gc
import json
import os
import threading
import time

import torch
from torch import nn

from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.recorder import record

WIDTH, BATCH, MICRO_BATCHES = 64, 32, 4


def held() -> dict[str, int]:
    """Return this process's resident bytes, descriptors and threads."""
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": threading.active_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--output", default="soak.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
    )
    recording = record(model, (torch.randn(BATCH, WIDTH),))
    layers = len(recording.graph.layers)
    layout = Layout(bounds=(0, layers // 2, layers), stage_ranks=(0, 1), schedule="1f1b", micro_batches=MICRO_BATCHES)
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3)
    rows = []
    start = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        size = BATCH if step % 7 else BATCH - 3  # an uneven batch now and then
        x, y = torch.randn(2, size, WIDTH)
        pipe.step(x, target=y)
        pipe.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            pipe.timeline()
        if step % 97 == 0:
            pipe.evaluate(x, target=y)
        if step % arguments.every == 0:
            rows.append({"step": step, **held()})
    seconds = time.perf_counter() - start
    with open(f"{arguments.output}.rank{pipe.rank}", "w") as file:
        json.dump({"seconds": seconds, "rows": rows}, file)
    first, last = rows[0], rows[-1]
    peak = max(row["resident_bytes"] for row in rows)
    print(
        f"rank {pipe.rank}: resident {first['resident_bytes'] / 2**20:.1f} MiB at step {first['step']}, "
        f"{last['resident_bytes'] / 2**20:.1f} at step {last['step']} "
        f"({last['resident_bytes'] / first['resident_bytes'] - 1:+.2%}; peak {peak / 2**20:.1f}), "
        f"descriptors {first['descriptors']} and {last['descriptors']}, threads {first['threads']} and "
        f"{last['threads']}, {seconds:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
