"""The model of the benchmark big-model, at a quarter of its width: four ranks that never hold it whole train it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from autopipe.executor.pipeline import Pipeline
from autopipe.stages.materialise import filling
from tests.processes import ProcessPool
from tests.reference import plain_step

FOLDER = Path(__file__).parents[2] / "docs" / "benchmarks" / "big-model"


def benchmark() -> ModuleType:
    specification = importlib.util.spec_from_file_location("big_model", FOLDER / "model.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def trained(rank: int) -> tuple[list[str], int, int, int]:
    """Return what differs from the plain model after three steps, and the elements held, elsewhere and in all."""
    big = benchmark()
    sizes = {"width": 640, "blocks": 4, "vocabulary": 512}
    torch.manual_seed(3)
    plain = big.gpt(**sizes)
    ids = torch.randint(0, 512, (8, 17))
    model, recording = big.recorded_on_meta(ids[:2, :-1], dtype=torch.float32, **sizes)
    layout = big.layout_of(recording, 4, 4)
    torch.manual_seed(3)
    fill = filling(model, weights=None, initialise=None)
    pipe = Pipeline(recording.module, recording.graph, layout, loss_fn=big.token_loss, materialise=fill)
    optimizers = [torch.optim.AdamW(ps, lr=1e-3) for ps in (pipe.parameters(), plain.parameters())]
    wrong = []
    for _ in range(3):
        x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        if not torch.equal(pipe.step(x, target=y), plain_step(plain, big.token_loss, (x,), y, 4)):
            wrong.append("loss")
        pipe.clip_grad_norm_(1.0)
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    theirs = dict(plain.named_parameters())
    wrong += [n for n, p in pipe.named_parameters() if not torch.allclose(p, theirs[n], rtol=1e-6, atol=1e-7)]
    elsewhere = sum(p.numel() for p in model.parameters() if p.is_meta)
    return wrong, sum(p.numel() for p in pipe.parameters()), elsewhere, sum(p.numel() for p in plain.parameters())


def test_ranks_that_hold_a_quarter_each_train_like_the_plain_model(processes: ProcessPool) -> None:
    outcomes = processes.run(trained, 4)
    for wrong, held, elsewhere, whole in outcomes:
        assert wrong == []
        assert held + elsewhere == whole
        assert held < 0.35 * whole
    assert sum(held for _, held, _, _ in outcomes) == outcomes[0][3]
