import pytest
import torch

from autopipe.documents.graph import Graph
from autopipe.recorder import record
from tests.models import GPT, JOBS


@pytest.fixture(scope="package")
def gpt() -> Graph:
    """Four blocks, `blocks.0` to `blocks.3`, of four layers each; head and token embedding tied."""
    torch.manual_seed(0)
    return record(GPT(), (torch.zeros(4, 16, dtype=torch.int64),)).graph


@pytest.fixture(scope="package")
def unet() -> Graph:
    torch.manual_seed(0)
    return record(JOBS["unet"].build(), (JOBS["unet"].draw(4)[0],)).graph
