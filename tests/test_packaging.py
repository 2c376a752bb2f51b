"""What is built to be installed holds all that the package needs, and says the right things about itself."""

import configparser
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling import build

import autopipe

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder / build.build_wheel(str(folder))


def sources(*folders: str) -> set[str]:
    files = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources("autopipe")
    assert {"autopipe/py.typed", "autopipe/reporting/page/page.js", "autopipe/hardware/catalogue/h100-sxm.json"} < names


def test_the_wheel_says_its_version_and_needs_no_more_than_it_runs_with(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    lines = archive.read(name).decode().splitlines()
    assert f"Version: {autopipe.__version__}" in lines
    needed = {line.removeprefix("Requires-Dist: ").split(">")[0] for line in lines if "Requires-Dist" in line}
    needed -= {line.removeprefix("Requires-Dist: ").split(">")[0] for line in lines if "; extra ==" in line}
    assert needed == {"click", "highspy", "jinja2", "msgspec", "numpy", "pulp", "rich", "scipy", "torch"}
    assert f"## {autopipe.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_command_is_found_by_pip_and_by_pipx_under_the_name_of_the_distribution(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    found = configparser.ConfigParser()
    found.read_string(archive.read(name).decode())
    assert dict(found["console_scripts"]) == {"autopipe": "autopipe.cli:main"}
    assert dict(found["pipx.run"]) == {"torch-autopipe": "autopipe.cli:main"}


def test_the_wheel_runs_where_the_sources_are_not(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    words = ["simulate", "--schedule", "1f1b", "--stages", "2", "--micro-batches", "4", "--times", "10,10,10"]
    command = [sys.executable, "-m", "autopipe", *words]  # of the current folder
    run = subprocess.run(command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "bubble ratio 0.2000" in run.stdout


def test_the_source_distribution_can_run_its_own_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sources("autopipe", "tests", "examples") <= names
    assert {"conftest.py", "constraints.txt", "pyproject.toml", "README.md", "docs/quickstart.md"} < names
