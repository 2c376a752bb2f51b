"""Plays every fault on every rank and writes the table of docs/reliability.md.

python docs/benchmarks/faults/matrix.py [--ranks 2 4] [--schedules 1f1b interleaved] [--at-once 4] [--kept FILE]

With ``--kept`` a run that was stopped goes on where it was; cases that went wrong are played again.
"""

import argparse
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.faults import DEADLINE_S, FAULTS, Case, Outcome, cases, play  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"


def cell(outcomes: list[Outcome]) -> str:
    """Return the ranks' outcomes of one fault in one cell: the slowest survivor, or what is wrong."""
    wrong = [f"rank {outcome.case.rank}: {outcome.fault}" for outcome in outcomes if outcome.fault]
    if wrong:
        return "; ".join(wrong)
    if all(set(outcome.codes) == {0} for outcome in outcomes):
        return "goes on"
    latest = max(t for o in outcomes for rank, t in enumerate(o.after_s) if rank != o.case.rank)
    return f"{latest:.1f} s"


def table(outcomes: list[Outcome]) -> str:
    """Return the table: a row for each fault, a column for each pipeline."""
    pipes = sorted({(o.case.ranks, o.case.schedule) for o in outcomes})
    lines = ["| fault | " + " | ".join(f"{p} ranks, {schedule}" for p, schedule in pipes) + " |"]
    lines.append("|---|" + "---|" * len(pipes))
    for fault in FAULTS:
        columns = [
            [o for o in outcomes if o.case.fault == fault and (o.case.ranks, o.case.schedule) == pipe] for pipe in pipes
        ]
        lines.append(f"| {fault} | " + " | ".join(cell(column) if column else "" for column in columns) + " |")
    good = sum(not outcome.fault for outcome in outcomes)
    hung = sum(outcome.hung for outcome in outcomes)
    lines += ["", f"{good} of {len(outcomes)} cases are as they must be, {hung} hung. Deadline {DEADLINE_S:g} s."]
    return "\n".join(lines) + "\n"


def played(listed: list[Case], kept: Path | None, *, at_once: int) -> list[Outcome]:
    """Return the outcomes of all cases; those in ``kept`` that are as they must be are not played again."""
    known = msgspec.json.decode(kept.read_bytes(), type=list[Outcome]) if kept and kept.exists() else []
    done = {outcome.case: outcome for outcome in known if not outcome.fault}
    for outcome in play([case for case in listed if case not in done], at_once=at_once):
        done[outcome.case] = outcome
        if outcome.fault:
            print(outcome.case, outcome.fault, *outcome.outputs, sep="\n", flush=True)
        if kept:
            draft = kept.with_suffix(".draft")
            draft.write_bytes(msgspec.json.encode(list(done.values())))
            draft.rename(kept)
    return [done[case] for case in listed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--schedules", nargs="+", default=["1f1b", "interleaved"])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--kept", type=Path, help="keep outcomes here, and begin with those that it holds")
    arguments = parser.parse_args()
    listed = [case for p in arguments.ranks for schedule in arguments.schedules for case in cases(p, schedule)]
    outcomes = played(listed, arguments.kept, at_once=arguments.at_once)
    text = table(outcomes)
    print(text)
    if arguments.write:
        page = PAGE.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(before + BEGIN + text + END + after)


if __name__ == "__main__":
    main()
