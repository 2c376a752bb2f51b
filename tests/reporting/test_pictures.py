"""Pictures for papers: every bar and label is there, in SVG as text; the same bytes for the same plan."""

import re
import sys
from pathlib import Path

import msgspec
import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import save
from autopipe.errors import InputError
from autopipe.reporting.pictures import memory_picture, timeline_picture
from tests.reporting import samples
from tests.reporting.page.plans import plan_of


def texts(svg: bytes) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.decode())


def test_a_timeline_has_ranks_micro_batches_and_a_legend() -> None:
    pytest.importorskip("matplotlib")
    svg = timeline_picture([("predicted", samples.timeline(2, 4)), ("measured", samples.timeline(2, 4))])
    found = texts(svg)
    assert {"predicted", "measured", "rank", "time, ms", "forward", "backward"} <= set(found)
    # Each micro-batch: forward and backward on two ranks, in two timelines; ticks add to that.
    assert all(found.count(str(index)) >= 8 for index in range(2, 4))
    assert "optimizer" not in found
    assert svg == timeline_picture([("predicted", samples.timeline(2, 4)), ("measured", samples.timeline(2, 4))])


def test_memory_stands_against_its_limit_and_the_measured_peak() -> None:
    pytest.importorskip("matplotlib")
    found = texts(memory_picture(samples.plan(), samples.timeline(2, 4)))
    assert {"peak memory, MiB", "limit", "measured peak", "activations and what travels"} <= set(found)
    ranks = tuple(msgspec.structs.replace(rank, memory_limit_bytes=80 << 30) for rank in samples.plan().ranks)
    found = texts(memory_picture(msgspec.structs.replace(samples.plan(), ranks=ranks)))
    assert "peak memory, MiB (the limit is 80.00 GiB)" in found
    assert "limit" not in found


def test_a_large_timeline_keeps_its_labels_as_text_and_its_bars_as_an_image() -> None:
    pytest.importorskip("matplotlib")
    svg = timeline_picture([("predicted", samples.timeline(32, 100))])
    assert len(svg) < 1_000_000
    assert b"<image" in svg
    assert "rank" in texts(svg)


@pytest.mark.parametrize(("name", "begin"), [("t.svg", b"<?xml"), ("t.png", b"\x89PNG"), ("t.pdf", b"%PDF")])
def test_the_name_of_the_file_chooses_the_kind(tmp_path: Path, name: str, begin: bytes) -> None:
    pytest.importorskip("matplotlib")
    save(plan_of(2, 4), tmp_path / "plan.json")
    assert run(["report", str(tmp_path / "plan.json"), "--picture", "timeline", "-o", str(tmp_path / name), "-q"]) == 0
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_without_matplotlib_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'torch-autopipe\[pictures\]'"):
        timeline_picture([("predicted", samples.timeline())])


def test_a_picture_with_the_name_of_a_page_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(plan_of(2, 4), tmp_path / "plan.json")
    assert run(["report", str(tmp_path / "plan.json"), "--picture", "memory"]) == 2
    assert "add -o memory.svg" in capsys.readouterr().err
