"""``autopipe capture``: from a model to a table, a document and a picture."""

from pathlib import Path

import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import decode, load
from autopipe.documents.graph import Graph

GPT = ["capture", "tests.models:GPT", "--input", "2x16:int64"]


def test_json_puts_the_document_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*GPT, "--json"]) == 0
    captured = capsys.readouterr()
    graph = decode(captured.out, Graph)
    assert graph.model == "GPT"
    assert len(graph.layers) == 19
    assert "Layers, and what crosses behind each" in captured.err
    assert "outputs and all gradients are equal" in captured.err


def test_granularity_makes_fewer_layers_which_are_written_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, picture = tmp_path / "graph.json", tmp_path / "graph.svg"
    assert run([*GPT, "--granularity", "8", "-o", str(document), "--graph", str(picture)]) == 0
    assert len(load(document, Graph).layers) == 7
    assert picture.read_text(encoding="utf-8").count('class="layer"') == 7
    said = capsys.readouterr().out
    assert "blocks.0 to blocks.2" in said
    assert f"Drawn in {picture}." in said


def test_a_model_without_memory_is_recorded_and_said_not_to_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*GPT, "--meta", "--leaf", "blocks.*"]) == 0
    said = capsys.readouterr().out
    assert "Not compared with the model: the model has no memory" in said
    assert "blocks.0.qkv" not in said


def test_what_was_called_whole_is_said_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", f"{_file(tmp_path)}:reads_inside", "--input", "3x4"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Called whole, because a graph cannot hold what they do: middle: module `middle` (ReadsValue)" in said


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["{path}:reads", "--input", "3x4"], 1, "record with specialise=True"),
        (["{path}:reads", "--input", "3x5"], 1, "cannot be multiplied"),
        (["{path}:reads"], 2, "add --input"),
        (["tests.models:GPT", "--input", "2x16:int64", "--graph", "/absent/graph.svg"], 1, "/absent/graph.svg cannot"),
    ],
)
def test_what_the_user_can_mend_is_a_sentence(
    words: list[str], code: int, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capture", *(word.format(path=_file(tmp_path)) for word in words)]) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_specialised_recording_is_allowed_to_read_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", f"{_file(tmp_path)}:reads", "--input", "3x4", "--specialise"]) == 0
    assert "1 layer with" in capsys.readouterr().out


def _file(folder: Path) -> Path:
    file = folder / "models_to_capture.py"
    file.write_text(
        "from tests.recorder.awkward import Pair, ReadsValue as reads\nreads_inside = lambda: Pair(reads())\n"
    )
    return file
