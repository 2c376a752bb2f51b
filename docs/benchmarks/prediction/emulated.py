"""Lay simulated steps beside measured ones on emulated devices: four and eight ranks, even and uneven.

Runs `docs/benchmarks/schedules/emulated.py`, which predicts from nominal durations and from constants of another run.

    python docs/benchmarks/prediction/emulated.py --rounds 9
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "schedules" / "emulated.py"
UNEVEN_4 = "10,9,3;6,10,8;12,6,6;8,12,4"
CASES = {
    "4 ranks, even": ["--ranks", "4", "--micro-batches", "8"],
    "4 ranks, uneven": ["--ranks", "4", "--micro-batches", "12", "--times", UNEVEN_4],
    "8 ranks, even": ["--ranks", "8", "--micro-batches", "16"],
    "8 ranks, uneven": ["--ranks", "8", "--micro-batches", "16", "--times", f"{UNEVEN_4};{UNEVEN_4}"],
}
SCHEDULES = "gpipe,1f1b,interleaved,zb-h1,zb-v"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--keep-all", action="store_true", help="keep rounds measured under foreign load")
    parser.add_argument("--case", choices=tuple(CASES), action="append", help="by default all of them")
    options = parser.parse_args()
    errors = []
    for name in options.case or CASES:
        command = [sys.executable, str(SCRIPT), *CASES[name], "--pairs", str(options.rounds), "--alone"]
        command += ["--all-at-once", "--schedules", SCHEDULES, *(["--keep-all"] if options.keep_all else [])]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for line in answer.splitlines():
            row = json.loads(line)
            error = 100 * (row["predicted_ms"] / row["step_ms"] - 1)
            errors.append(abs(error))
            print(
                f"{name}: {row['system']}, {row['rounds']} rounds, {row['step_ms']:.1f} ms, {error:+.1f} %", flush=True
            )
    print(f"median {statistics.median(errors):.1f} %, worst {max(errors):.1f} %")


if __name__ == "__main__":
    main()
