"""What is imported when: planning and help never load torch, and no submodule shadows a public name."""

import subprocess
import sys
import time

import autopipe
from autopipe import errors

TORCH_FREE = ("planner", "simulator", "costs", "schedules", "hardware", "documents", "reporting", "errors", "units")

IMPORT_ROOMS = """
import pkgutil, sys
from importlib import import_module
for room in sys.argv[1:]:
    module = import_module(f"autopipe.{room}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + "."):
        import_module(found.name)
print(*sorted({"torch", "pulp", "highspy", "scipy"} & set(sys.modules)))
"""

RUN_COMMAND = """
import sys
from autopipe.cli.entry import run
code = run(sys.argv[1:])
print("torch" in sys.modules, code, file=sys.stderr)
"""

IMPORT_ALL = """
import pkgutil
from importlib import import_module
import autopipe
before = {name: getattr(autopipe, name) for name in autopipe.__all__}
for found in pkgutil.walk_packages(autopipe.__path__, "autopipe."):
    import_module(found.name)
print(*(name for name, value in before.items() if getattr(autopipe, name) is not value))
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)


def test_planning_rooms_import_neither_torch_nor_a_solver() -> None:
    assert python(IMPORT_ROOMS, *TORCH_FREE).stdout.split() == []


def test_other_rooms_do_import_torch() -> None:
    # The control of the test above: it would notice.
    assert "torch" in python(IMPORT_ROOMS, "stages").stdout.split()


def test_importing_autopipe_and_a_document_does_not_import_torch() -> None:
    code = "import sys, autopipe; autopipe.Plan; autopipe.Cluster; autopipe.StepError; print('torch' in sys.modules)"
    assert python(code).stdout.strip() == "False"


def test_help_of_every_command_does_not_import_torch() -> None:
    for command in ((), ("profile",), ("partition",), ("simulate",), ("schedule",), ("demo",)):
        result = python(RUN_COMMAND, *command, "--help")
        assert result.stdout.startswith("Usage: autopipe")
        assert result.stderr.split() == ["False", "0"], command


def test_no_submodule_takes_the_place_of_a_public_name() -> None:
    assert python(IMPORT_ALL).stdout.split() == []


def test_public_names_are_sorted_and_hold_every_exception() -> None:
    assert autopipe.__all__ == sorted(autopipe.__all__)
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert raised == {name for name in autopipe.__all__ if name.endswith("Error")}
    assert set(autopipe.__all__) <= set(dir(autopipe))


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    assert not hasattr(autopipe, "utils")


def test_help_starts_in_a_fifth_of_a_second() -> None:
    durations = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "autopipe", "--help"], capture_output=True, check=True)
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.2
