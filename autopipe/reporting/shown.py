"""How documents show themselves: as text where Python prints them, as HTML in a notebook."""

import io
from functools import singledispatch
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline
from autopipe.reporting.idle_table import idle_table
from autopipe.reporting.plan_table import plan_report
from autopipe.reporting.profile_table import profile_report
from autopipe.reporting.text import LITERAL, as_text, printable
from autopipe.reporting.timeline_text import timeline_text
from autopipe.units import format_time

WIDTH = 100
_FRAME = '<pre style="line-height:1.2;overflow-x:auto;white-space:pre">{code}</pre>'


def text_of(document: Any) -> str:
    """Return a profile, plan or timeline as the tables that its command prints, 80 columns wide."""
    return as_text(drawn(document)).rstrip("\n")


def html_of(document: Any) -> str:
    """Return the same as HTML that stands alone, in colours; all names are escaped."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, **LITERAL)
    console.print(drawn(document))
    return printable(console.export_html(inline_styles=True, code_format=_FRAME))


@singledispatch
def drawn(document: Any) -> RenderableType:
    """Return what shows ``document``; a sentence for one that holds nothing to show, or does not hold together."""
    raise TypeError(f"a {type(document).__name__} has no table")


@drawn.register
def _(document: Profile) -> RenderableType:
    if not document.layers or not document.micro_batches:
        return Text(f"Profile of {document.model}: no layers")
    return profile_report(document)


@drawn.register
def _(document: Plan) -> RenderableType:
    fault = next(document.faults(), None)
    return plan_report(document) if fault is None else Text(f"Plan of {document.model} that does not hold: {fault}")


@drawn.register
def _(document: Timeline) -> RenderableType:
    headline = Text(
        f"{document.source} step of {format_time(document.step_ns)}: {len(document.ranks)} ranks, "
        f"{document.micro_batches} micro-batches, schedule {document.schedule}"
    )
    if not document.ranks:
        return headline
    return Group(headline, "", timeline_text(document), "", idle_table(document))
