"""Plan every public graph with the command line, score the assignment by the graphs' own script, and time it."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="plan-bench/1 graphs with score.py beside them")
    parser.add_argument("--only", default="*", help="a pattern of names")
    options = parser.parse_args()
    print("| graph | devices | stages | bottleneck ms | over the best known | proof | s | peak MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted(options.folder.glob(f"{options.only}.json")):
        print(row(path, options.folder / "score.py"), flush=True)


def row(path: Path, score: Path) -> str:
    graph = json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        plan, assignment = Path(folder) / "plan.json", Path(folder) / "assignment.json"
        command = [sys.executable, "-m", "autopipe", "partition", str(path), "--format", "bench", "-q"]
        begun = time.perf_counter()
        process = subprocess.Popen(
            [*command, "-o", str(plan), "--assignment", str(assignment)], stderr=subprocess.PIPE, text=True
        )
        said = process.stderr.read()
        _, status, usage = wait(process)
        seconds = time.perf_counter() - begun
        head = f"| {path.stem} | {graph['devices']} |"
        tail = f"{seconds:.2f} | {usage.ru_maxrss >> 10} |"
        if status == 3:
            print(said.strip(), file=sys.stderr)
            return f"{head} | infeasible | {known(graph)[0]} | exhausted | {tail}"
        assert status == 0, said
        scored = subprocess.run([sys.executable, str(score), str(assignment), "--json"], capture_output=True, text=True)
        assert scored.returncode == 0, scored.stdout + scored.stderr
        answer = json.loads(scored.stdout)
        certificate = json.loads(plan.read_text())["certificate"]
        best = known(graph)[1]
        ratio = "none known" if best is None else f"{answer['objective_s'] / best:.7f}"
        proof = f"gap {certificate['solver_gap']:.1e}, {certificate['engine']}"
        return f"{head} {answer['stages']} | {1e3 * answer['objective_s']:.4f} | {ratio} | {proof} | {tail}"


def wait(process: subprocess.Popen) -> tuple[int, int, resource.struct_rusage]:
    import os

    pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return pid, process.returncode, usage


def known(graph: dict) -> tuple[str, float | None]:
    """Return whether the graph is known to be infeasible, and its best known contiguous bottleneck in seconds."""
    exact = [
        reference
        for reference in graph.get("reference", [])
        if reference.get("devices") == graph["devices"]
        and reference.get("gpus_only", True)
        and "not contiguous" not in reference["label"]
        and "no recompute" not in reference["label"]
    ]
    values = [reference["value_s"] for reference in exact if reference.get("value_s")]
    infeasible = any(reference.get("infeasible") for reference in exact)
    return ("known to be" if infeasible and not values else "not known"), min(values, default=None)


if __name__ == "__main__":
    main()
