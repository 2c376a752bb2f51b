"""Documents show themselves as tables, in Python and in a notebook, whatever they hold."""

import re
from html import unescape

import msgspec
import pytest

from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline
from autopipe.reporting.plan_table import plan_report
from autopipe.reporting.profile_table import profile_report
from autopipe.reporting.text import as_text
from tests.reporting import samples

DOCUMENTS = [samples.profile(), samples.plan(), samples.timeline()]
HOSTILE = "<script>alert('x')</script>[/x]\x1b[31m"


def test_what_python_prints_is_the_table_of_the_command() -> None:
    assert repr(samples.profile()) + "\n" == as_text(profile_report(samples.profile()))
    assert repr(samples.plan()) + "\n" == as_text(plan_report(samples.plan()))
    assert "rank 1 |" in repr(samples.timeline())
    assert "Time of the step by cause" in repr(samples.timeline())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: type(document).__name__)
def test_a_notebook_is_given_the_same_figures(document: Profile | Plan | Timeline) -> None:
    html = document._repr_html_()
    assert html.startswith("<pre")
    text = unescape(re.sub(r"<[^>]+>", "", html))
    figures = re.findall(r"\d+\.\d+", repr(document))
    assert figures
    if not isinstance(document, Timeline):  # whose columns are as wide as there is room
        assert sorted(re.findall(r"\d+\.\d+", text)) == sorted(figures)


def test_names_are_text_in_a_notebook_too() -> None:
    html = msgspec.structs.replace(samples.plan(), model=HOSTILE)._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html


def test_what_holds_nothing_or_contradicts_itself_is_shown_in_a_sentence() -> None:
    no_layers, no_stages = (
        msgspec.structs.replace(document, **{field: ()})
        for document, field in ((samples.profile(), "layers"), (samples.plan(), "stages"))
    )
    assert repr(no_layers).startswith("the profile does not hold together as an autopipe.profile document: layers is")
    assert repr(no_stages).startswith("the plan does not hold together as an autopipe.plan document: stages is empty")
    assert "Expected `int`, got `str`" in repr(msgspec.structs.replace(samples.plan(), step_ns="1"))
    assert repr(msgspec.structs.replace(samples.timeline(), ranks=())).startswith("simulated step of 15.00 ms: 0 ranks")
