"""Measures how long profiles without the device take, and how their times rank layers beside measured ones."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scipy.stats import spearmanr

from autopipe.documents.files import load
from autopipe.documents.profile import Profile
from autopipe.hardware.lookup import find_device
from autopipe.profiler import estimate, measure
from autopipe.profiler.load import ForeignLoad

HERE = Path(__file__).parent
LARGE = ("llama70", "gpt175", "llama405")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", nargs="*", default=LARGE, help="which large models to profile")
    parser.add_argument("--ranks", type=int, default=3, help="how many repeats of the comparison with measured times")
    options = parser.parse_args()
    for name in options.large:
        large(name)
    for _ in range(options.ranks):
        for name in ("small_gpt", "small_cnn"):
            compared(name)


def large(name: str) -> None:
    """Run the command in a process of its own and print what it took."""
    load_before = ForeignLoad()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        command = [sys.executable, "-m", "autopipe", "profile", f"{HERE / 'models.py'}:{name}"]
        command += ["--input", "2x2048:int64", "--device", "h100-sxm", "--dtype", "bfloat16", "-q", "-o", str(path)]
        start = time.monotonic()
        subprocess.run(command, check=True)
        seconds = time.monotonic() - start
        profile = load(path, Profile)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    parameters = sum(parameter.bytes for parameter in profile.graph.parameters if not parameter.is_buffer) / 2e9
    groups = len({layer.group for layer in profile.layers})
    print(
        f"| {name} | {parameters:.1f} | {len(profile.layers)} | {groups} | {seconds:.1f} | {peak:.2f} | "
        f"{load_before.share():.1%} |",
        flush=True,
    )


def compared(name: str) -> None:
    """Print the rank correlation of estimated and measured layer times on this machine."""
    sys.path[:0] = [str(HERE), str(HERE.parents[2])]
    import models

    model, inputs, _ = getattr(models, name)()
    load_before = ForeignLoad()
    measured = measure(model, (inputs,), micro_batches=(len(inputs),), budget_s=8)
    share = load_before.share()
    description = {"base": "a100-80-sxm", "name": "this", "matches": [measured.device], "platform": "cpu"}
    rate = {"value": 60 * 10**9, "source": "assumption: one core"}
    description["matrix_flops_per_s"] = {"float32": rate, "tfloat32": rate}
    description["vector_flops_per_s"] = {"float32": rate}
    description["bandwidth_bytes_per_s"] = {"value": 10 * 10**9, "source": "assumption: one core"}
    description["launch_ns"] = {"value": 5000, "source": "assumption"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "this.json"
        path.write_text(json.dumps(description))
        device = find_device(str(path))
    row = [name, f"{share:.1%}"]
    told = estimate(model, (inputs,), device=device, micro_batches=(len(inputs),))
    times = [[cost.forward_ns + cost.backward_ns for cost in column(profile)] for profile in (told, measured)]
    row += [f"{spearmanr(*times).statistic:.3f}", f"{sum(times[0]) / sum(times[1]):.2f}"]
    print("| " + " | ".join(row) + " |", flush=True)


def column(profile: Profile) -> list:
    return [layer.costs[0] for layer in profile.layers] + [profile.loss[0]]


if __name__ == "__main__":
    main()
