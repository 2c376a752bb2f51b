"""Runs the snippets of the documentation: each page in a folder of its own, from top to bottom.

A Python block whose first line is a comment with a file name becomes that file; any other is run. A ``sh`` block is run
by a shell. Blocks of no language, or another one, are only shown.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser

HERE = Path(__file__).parent


class FileOrCode(CodeBlockParser):
    """Python blocks: written to the file that they name, or run in the page's namespace."""

    language = "python"

    def __init__(self) -> None:
        super().__init__()
        self._run = PythonEvaluator()

    def evaluate(self, example: Example) -> Any:
        text = str(example.parsed)
        named = re.match(r"# ([\w.]+\.py)\n", text)
        if named is None:
            return self._run(example)
        Path(named[1]).write_text(text)
        return None


def run_shell(example: Example) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", str(example.parsed)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, f"{example.parsed}\n{run.stdout}\n{run.stderr}"


def enter(namespace: dict[str, Any]) -> None:
    folder = tempfile.mkdtemp(prefix="autopipe-snippets-")
    namespace["_before"] = (folder, os.getcwd(), list(sys.path), set(sys.modules))
    os.chdir(folder)
    sys.path.insert(0, folder)


def leave(namespace: dict[str, Any]) -> None:
    folder, place, path, modules = namespace["_before"]
    os.chdir(place)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) == f"{folder}/{name}.py":
            del sys.modules[name]  # the next page has a file of the same name
    shutil.rmtree(folder)


pytest_collect_file = Sybil(
    parsers=[FileOrCode(), CodeBlockParser("sh", run_shell)],
    patterns=["docs/*.md", "docs/guides/*.md", "docs/reference/*.md"],
    excludes=["docs/index.md"],
    setup=enter,
    teardown=leave,
    path=str(HERE),
).pytest()
