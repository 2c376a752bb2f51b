"""The script is run as it is, by torch.distributed.pipelining over gloo, and its gradients are compared with ours."""

import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch

import autopipe
from autopipe.documents.files import save
from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.exporters.named import export
from autopipe.recorder import record
from tests.exporters.plans import at_blocks, planned
from tests.models import JOBS
from tests.processes import ProcessPool
from tests.reference import even_bounds

CASES = [
    ("gpt", "1f1b", 2, 1),
    ("unet", "gpipe", 2, 1),  # skips go past stages that do not read them
    ("gpt", "interleaved", 2, 2),
    ("mlp", "zb-h1", 2, 1),  # read by torch from a file
]


def load_script(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported", folder / "train_with_torch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exported"] = module
    spec.loader.exec_module(module)
    return module


def job(name: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return JOBS[name].build(), *JOBS[name].draw(8)


def on_rank(rank: int, folder: str, name: str) -> dict[str, torch.Tensor]:
    import os

    os.chdir(folder)
    script = load_script(Path(folder))
    model, x, y = job(name)
    script.build = lambda: (model, (x,), y, JOBS[name].loss)
    trained = script.main()
    return {n: p.grad for n, p in trained.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "schedule", "ranks", "virtual"), CASES)
def test_its_gradients_equal_ours(
    processes: ProcessPool, tmp_path: Path, name: str, schedule: str, ranks: int, virtual: int
) -> None:
    model, x, y = job(name)
    graph = record(copy.deepcopy(model), (x,)).graph
    plan = planned(graph, even_bounds(len(graph.layers), ranks * virtual), schedule=schedule, virtual_stages=virtual)
    save(plan, tmp_path / "plan.json")
    for file in export(plan, "torch", plan_file=str(tmp_path / "plan.json")).files:
        (tmp_path / file.name).write_text(file.text)
    theirs: dict[str, torch.Tensor] = {}
    for part in processes.run(on_rank, ranks, str(tmp_path), name):
        theirs.update(part)
    pipe = autopipe.pipeline(model, plan=plan, loss_fn=JOBS[name].loss)
    pipe.step(x, target=y)
    ours = {n: p.grad for n, p in model.named_parameters()}
    assert theirs.keys() == ours.keys()
    for parameter, gradient in ours.items():
        torch.testing.assert_close(theirs[parameter], gradient, msg=lambda text, p=parameter: f"{p}: {text}")


def test_an_argument_without_the_batch_is_refused(gpt: Graph) -> None:
    plan = planned(gpt, at_blocks(gpt, "blocks.2"))
    whole = msgspec.structs.replace(plan, graph=msgspec.structs.replace(gpt, whole_inputs=("ids",)))
    with pytest.raises(InputError, match="ids has no batch dimension"):
        export(whole, "torch")


def test_micro_batches_of_unequal_size_are_refused(gpt: Graph) -> None:
    plan = msgspec.structs.replace(planned(gpt, at_blocks(gpt, "blocks.2")), batch_size=7)
    with pytest.raises(InputError, match="7 samples are not 4 micro-batches of 2"):
        export(plan, "torch")


def test_without_a_factory_the_script_says_where_the_model_goes(gpt: Graph) -> None:
    text = export(planned(gpt, at_blocks(gpt, "blocks.2")), "torch").files[0].text
    assert "raise NotImplementedError" in text
    compile(text, "train_with_torch.py", "exec")
