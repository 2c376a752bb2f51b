"""``autopipe doctor``: what training needs of this machine, or under torchrun of all machines, and what to mend."""

import os
import re
import signal
import subprocess
import sys

import click
import msgspec
from rich.table import Table
from rich.text import Text

from autopipe.cli.doctor.facts import Facts, gather_facts
from autopipe.cli.doctor.findings import Finding, Level, examine
from autopipe.cli.screen import Screen
from autopipe.errors import InputError

COLOURS = {Level.GOOD: "green", Level.WARNING: "yellow", Level.FAULT: "red"}
LINK_LIMIT_S = 40.0
REACH = "set GLOO_SOCKET_IFNAME to an interface that `ip link` shows, and let local connections through"


@click.command("doctor", short_help="Look for what would keep training from working here.")
@click.option("--no-links", is_flag=True, help="Do not try a message between two processes.")
@click.option("--json", "as_json", is_flag=True, help="The findings alone on stdout.")
def command(no_links: bool, as_json: bool) -> int:
    """Look at torch, backends, devices, solver, limits and links, and say what to mend.

    Under torchrun every rank looks, the ranks compare what they found, and the first one speaks. Exit code 1 where
    something would keep training from working.

    \b
    autopipe doctor
    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint host:29500 -m autopipe doctor
    """
    facts = gather_facts()
    own = examine(facts)
    joins = "TORCHELASTIC_RUN_ID" in os.environ and not any(finding.level is Level.FAULT for finding in own)
    peers = _meet(facts) if joins else ()
    if peers and facts.rank != 0:
        return 0
    findings = examine(facts, peers)
    clear = "gloo" in facts.backends and not facts.interface_errors
    if clear and not no_links and not peers:
        findings = (*findings, try_link())
    _show(findings, Screen(json=as_json, quiet=as_json))
    if as_json:
        click.echo(msgspec.json.encode([finding._asdict() for finding in findings]))
    return 1 if any(finding.level is Level.FAULT for finding in findings) else 0


def try_link(*, limit_s: float = LINK_LIMIT_S) -> Finding:
    """Return how two processes of this machine reach each other over gloo."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    }
    process = subprocess.Popen(
        [*words, "-m", "autopipe.cli.doctor.link"],
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        # The launcher's children hold its pipes, so all of them have to go.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Finding(Level.FAULT, "links", f"no answer between two processes within {limit_s:.0f} s", REACH)
    if process.returncode != 0:
        return Finding(Level.FAULT, "links", f"two processes cannot reach each other: {_cause(errors)}", REACH)
    return Finding(Level.GOOD, "links", said.strip())


def _cause(errors: str) -> str:
    """Return the line that says what failed: the launcher's own error, which comes last, says only that a child did."""
    lines = errors.splitlines()
    named = [line for line in lines if re.match(r"(\[rank\d\]: )?[\w.]+(Error|Exception)\b", line)]
    causes = [line for line in named if "ChildFailedError" not in line]
    return (causes or named or lines or ["no output"])[-1].strip()


def _meet(facts: Facts) -> tuple[Facts, ...]:
    """Return what the other ranks found; they are given what this one found."""
    import torch.distributed as dist

    from autopipe.executor.launch import join_group

    join_group()
    content: list[bytes | None] = [None] * dist.get_world_size()
    dist.all_gather_object(content, msgspec.json.encode(facts))
    own = dist.get_rank()
    others = tuple(
        msgspec.json.decode(one, type=Facts) for i, one in enumerate(content) if i != own and one is not None
    )
    if len(others) != dist.get_world_size() - 1:
        raise InputError("some ranks answered nothing: run autopipe doctor on each machine alone.")
    return others


def _show(findings: tuple[Finding, ...], screen: Screen) -> None:
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.found)
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(str(finding.level), style=COLOURS[finding.level]), finding.what, text)
    screen.show(table)
    faults = sum(finding.level is Level.FAULT for finding in findings)
    screen.show()
    screen.show(f"{faults} to mend before training works." if faults else "Nothing here keeps training from working.")
