"""``autopipe partition GRAPH --format ...`` plans a graph that another planner's tools profiled."""

from pathlib import Path
from typing import Any

import click
import msgspec

from autopipe.cli.screen import Screen

MICRO_BATCHES_A_STAGE = 4


def partition_graph(
    source: str,
    *,
    format: str,
    gpus: int | None,
    memory: int | None,
    stages: int | None,
    micro_batches: int | None,
    bandwidth: int | None,
    time_limit: float,
    output: str | None,
    assignment: str | None,
    screen: Screen,
) -> None:
    """Plan the graph in the file ``source`` for the least bottleneck, and write what was asked for."""
    from autopipe.documents.files import write_whole
    from autopipe.planner.dag_document import as_plan, proof_sentence
    from autopipe.planner.dag_document import assignment as assignment_of
    from autopipe.planner.dag_plan import plan_dag
    from autopipe.planner.imported import read_graph
    from autopipe.reporting.plan_table import headline, rank_table, stage_table

    dag = read_graph(source, format, devices=gpus, memory_bytes=memory, bytes_per_s=bandwidth)
    found = plan_dag(dag, stages=stages, time_limit_s=time_limit)
    plan = as_plan(found, micro_batches=micro_batches or MICRO_BATCHES_A_STAGE * len(found.loads))
    for part in (headline(plan), "", stage_table(plan), "", rank_table(plan), "", proof_sentence(found)):
        screen.show(part)
    if assignment is not None:
        written: dict[str, Any] = assignment_of(found, str(Path(source).resolve()))
        write_whole(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n", assignment)
        screen.say(f"\nAssignment written to {assignment}.")
    screen.deliver(plan, output)


class StagesParameter(click.ParamType):
    """A number of stages from 1 on, or ``auto`` for as many as pay."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number, None for ``auto``."""
        if value == "auto":
            return None
        if not str(value).isdecimal() or not 1 <= int(value) <= 1 << 20:
            self.fail(f"{value!r} is no number of stages: write auto or a number from 1 on.", param, ctx)
        return int(value)
