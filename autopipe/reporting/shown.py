"""How documents show themselves: as text where Python prints them, as HTML in a notebook."""

import io
from functools import singledispatch
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from autopipe.documents.arguments import checked_document
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline
from autopipe.errors import AutopipeError
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
    return as_text(_sound(document)).rstrip("\n")


def html_of(document: Any) -> str:
    """Return the same as HTML that stands alone, in colours; all names are escaped."""
    console = Console(file=io.StringIO(), width=WIDTH, record=True, **LITERAL)
    console.print(_sound(document))
    return printable(console.export_html(inline_styles=True, code_format=_FRAME))


def _sound(document: Any) -> RenderableType:
    """Return `drawn`; the reason, as a sentence, for a document made by hand that does not hold together."""
    try:
        return drawn(checked_document(document, origin=f"the {type(document).__name__.lower()}"))
    except AutopipeError as error:
        return Text(str(error))


@singledispatch
def drawn(document: Any) -> RenderableType:
    """Return what shows a ``document`` that holds together."""
    raise TypeError(f"a {type(document).__name__} has no table")


@drawn.register
def _(document: Profile) -> RenderableType:
    return profile_report(document)


@drawn.register
def _(document: Plan) -> RenderableType:
    return plan_report(document)


@drawn.register
def _(document: Timeline) -> RenderableType:
    headline = Text(
        f"{document.source} step of {format_time(document.step_ns)}: {len(document.ranks)} ranks, "
        f"{document.micro_batches} micro-batches, schedule {document.schedule}"
    )
    if not document.ranks:
        return headline
    return Group(headline, "", timeline_text(document), "", idle_table(document))
