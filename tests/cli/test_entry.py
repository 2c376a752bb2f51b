"""Every way out of the command line is an exit code and a sentence."""

import warnings

import click
import pytest

from autopipe import errors
from autopipe.cli.entry import run
from autopipe.cli.group import COMMANDS, autopipe


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A list whose first entry the command `schedule` raises."""
    raised: list[BaseException] = []

    @click.command()
    def command() -> None:
        raise raised[0]

    monkeypatch.setattr("autopipe.cli.schedule.command", command)
    return raised


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (errors.InputError("give at least 1."), 1, "Error: give at least 1.\n"),
        (errors.InfeasibleError("needs 9 of 8 GiB."), 3, "Error: needs 9 of 8 GiB.\n"),
        (KeyboardInterrupt(), 1, "Error: interrupted.\n"),
        (click.UsageError("no such option"), 2, "Error: no such option\n"),
    ],
)
def test_an_error_is_one_sentence_and_its_exit_code(
    raising: list[BaseException],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    sentence: str,
) -> None:
    raising.append(error)
    assert run(["schedule"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.lstrip("\n").endswith(sentence)
    assert "Traceback" not in captured.err


def test_a_bug_of_ours_is_said_to_be_one_and_can_be_traced(
    raising: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    raising.append(ZeroDivisionError("division by zero"))
    assert run(["schedule"]) == 70
    said = capsys.readouterr().err
    assert "This is a bug of autopipe" in said
    assert "Traceback" not in said
    assert run(["--traceback", "schedule"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_warning_is_one_line_without_the_place_in_our_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        warnings.warn("the machine is busy.", stacklevel=1)

    monkeypatch.setattr("autopipe.cli.schedule.command", command)
    assert run(["schedule"]) == 0
    assert capsys.readouterr().err == "Warning: the machine is busy.\n"


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profil"]) == 2
    assert "No such command 'profil'" in capsys.readouterr().err


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    run([])
    printed = capsys.readouterr()
    assert "From model to plan:" in printed.out + printed.err


def test_every_command_of_the_list_exists_and_says_the_same_about_itself() -> None:
    context = click.Context(autopipe)
    for name, entry in COMMANDS:
        command = autopipe.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.short_help == entry.summary


@pytest.mark.parametrize("name", [name for name, _ in COMMANDS if name != "demo"])
def test_the_help_of_every_command_has_an_example_on_a_line_of_its_own(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"  autopipe {name} ") or line == f"  autopipe {name}" for line in lines)
    assert "\\b" not in "".join(lines)
