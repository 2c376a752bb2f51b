"""Capture a zoo of models in four ways, each judged against the eager model, and print the table."""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2]), str(HERE / "compared")]

TIMEOUT_S = 150
GROUPS = ("hugging_face", "hard_cases", "timm", "torchvision")


def cases_of(group):
    if group == "hugging_face":
        from tests.zoo.hugging_face import CASES
    elif group == "hard_cases":
        from tests.zoo.hard_cases import CASES
    else:
        import vision

        CASES = vision.timm_cases() if group == "timm" else vision.torchvision_cases()
    return CASES


def judge_here(group, ways, names):
    """Print one line of JSON for each case and way."""
    import torch
    from ways import WAYS

    from tests.zoo.judge import judge

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    cases = {case.name: case for case in cases_of(group)}
    for name in names:
        for way in ways:
            begin = time.perf_counter()
            verdict = judge(cases[name], WAYS[way])
            row = {
                "group": group, "family": cases[name].family, "name": name, "way": way, "capture": verdict.capture,
                "mode": verdict.mode, "batch": verdict.batch, "names": verdict.names, "detail": verdict.detail[:400],
                "notes": dict(verdict.notes), "seconds": round(time.perf_counter() - begin, 2),
            }  # fmt: skip
            print("ROW " + json.dumps(row), flush=True)


def judge_all(group, way, out, limit_s):
    """Judge every case of a group in another process, a new one after each that ends or hangs it."""
    done = set()
    if out.exists():
        done = {row["name"] for row in map(json.loads, out.read_text().splitlines()) if row["way"] == way}
    families = {case.name: case.family for case in cases_of(group)}
    left = [name for name in families if name not in done]
    end = time.monotonic() + limit_s
    while left and time.monotonic() < end:
        command = [sys.executable, __file__, "--here", group, way, *left]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            stop = threading.Timer(TIMEOUT_S, process.kill)
            stop.start()
            for line in process.stdout:
                if not line.startswith("ROW "):
                    continue
                stop.cancel()
                with out.open("a") as file:
                    file.write(line.removeprefix("ROW "))
                left.pop(0)
                if time.monotonic() > end:
                    process.kill()
                    return
                stop = threading.Timer(TIMEOUT_S, process.kill)
                stop.start()
            stop.cancel()
        if left:
            row = dict.fromkeys(("capture", "mode", "batch"), "failed") | {
                "group": group, "family": families[left[0]], "name": left.pop(0), "way": way, "names": False,
                "detail": f"its process ended, or took more than {TIMEOUT_S} s", "notes": {}, "seconds": TIMEOUT_S,
            }  # fmt: skip
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def table(rows):
    """Return the counts of each family and way as a table in markdown."""
    by = collections.defaultdict(list)
    for row in rows:
        by[row["family"], row["way"]].append(row)
    families = list(dict.fromkeys(row["family"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    lines = [f"| family | models | {' | '.join(ways)} |", "|---" * (len(ways) + 2) + "|"]
    for family in [*families, "all"]:
        counts = []
        for way in ways:
            found = [row for row in rows if row["way"] == way and family in (row["family"], "all")]
            counts.append(found)
        models = max(len(found) for found in counts)
        cells = [str(sum(row["capture"] in ("equal", "close") for row in found)) for found in counts]
        lines.append(f"| {family} | {models} | {' | '.join(cells)} |")
    lines += ["", "| of these | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]

    def count(what, test):
        cells = [str(sum(test(row) for row in rows if row["way"] == way)) for way in ways]
        lines.append(f"| {what} | {' | '.join(cells)} |")

    right = ("equal", "close")
    count("outputs and gradients equal", lambda row: row["capture"] in right)
    count("bit for bit", lambda row: row["capture"] == "equal")
    count("batch 2 -> 4 too", lambda row: row["capture"] in right and row["batch"] in right)
    count("train <-> eval too", lambda row: row["capture"] in right and row["mode"] in right)
    count("every parameter's name kept", lambda row: row["capture"] in right and row["names"])
    count("refused with a sentence", lambda row: row["capture"] == "refused")
    count("an error", lambda row: row["capture"] == "failed")
    count("wrong without an error", lambda row: "wrong" in (row["capture"], row["mode"], row["batch"]))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS[:2]), help="which models: %(default)s")
    parser.add_argument("--ways", nargs="*", default=None)
    parser.add_argument("--out", type=Path, default=None, help="results so far; those are not redone")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for each group and way")
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if options.here:
        return judge_here(options.here[0], [options.here[1]], options.here[2:])
    options.out = options.out or Path(tempfile.mkdtemp()) / "results.jsonl"
    if not options.table:
        from ways import WAYS

        for group in options.groups:
            for way in options.ways or WAYS:
                judge_all(group, way, options.out, options.limit)
    print(table([json.loads(line) for line in options.out.read_text().splitlines()]))


if __name__ == "__main__":
    main()
