from pathlib import Path

import pytest

from autopipe.cli.entry import run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


ASKED = ["simulate", "--schedule", "1f1b", "--micro-batches", "8", "--times", "10,10,10"]


def test_settings_stand_in_for_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "autopipe.toml").write_text("[simulate]\nstages = 4\nlink = 0.5\n")
    assert run(ASKED) == 0
    assert "4 ranks" in capsys.readouterr().out


def test_the_command_line_wins(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "autopipe.toml").write_text("[simulate]\nstages = 4\n")
    assert run([*ASKED, "--stages", "2"]) == 0
    assert "2 ranks" in capsys.readouterr().out


def test_pyproject_is_read_where_there_is_no_file_of_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pyproject.toml").write_text("[tool.autopipe.simulate]\nstages = 3\n")
    assert run(ASKED) == 0
    assert "3 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[simulate\n", "autopipe.toml cannot be read"),
        ("[simulat]\n", "'simulat', which is no command"),
        ("[simulate]\nstage = 4\n", "simulate has no option --stage"),
        ("simulate = 4\n", "write a table"),
    ],
)
def test_a_fault_in_the_settings_is_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (folder / "autopipe.toml").write_text(text)
    assert run(ASKED) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_a_project_file_of_others_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pyproject.toml").write_text("[broken")
    assert run([*ASKED, "--stages", "2"]) == 0
