"""Settings for every test: one thread, no deadlines, accelerator tests skipped where there is none, golden files."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.processes import ProcessPool

os.environ.setdefault("OMP_NUM_THREADS", "1")
# How long an example takes says how busy the machine is.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write the golden files anew instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.accelerator.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an accelerator"))


class Golden:
    """Compares a text with the golden file of that name beside the test, or writes it anew."""

    def __init__(self, folder: Path, refresh: bool) -> None:
        self.folder = folder
        self.refresh = refresh

    def check(self, name: str, text: str) -> None:
        path = self.folder / name
        if self.refresh:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path} differs: look, and if the new text is right run --refresh-golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.path.parent / "golden", request.config.getoption("--refresh-golden"))


@pytest.fixture(scope="session")
def processes() -> Iterator[ProcessPool]:
    pool = ProcessPool(4)
    yield pool
    pool.close()
