"""Public functions that are given nonsense answer with an error of the package, whatever the argument."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import autopipe
from autopipe.documents.files import Document
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import AutopipeError, CaptureError, DocumentError, InputError, ProfileError, StepError
from autopipe.exporters.named import NAMES, export
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.planner import rescored, simulate_plan, trade_offs
from autopipe.reporting.chrome_trace import chrome_trace
from autopipe.reporting.page import report_page
from autopipe.schedules.named import make
from tests.profiles import cost, layer, profile

NONSENSE = st.one_of(
    st.sampled_from(
        [None, True, 10**30, 10**400, 2**63, -1, 0, b"x", object(), torch.zeros(2), int, len, "\ud800", "a\0b"]
    ),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers() | st.text(max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2), st.none(), max_size=1),
)
MODEL = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
BATCH = torch.ones(4, 4)
EXAMPLE = (torch.zeros(2, 4),)
LOSS = nn.functional.mse_loss
QUICK = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def small_profile() -> Profile:
    return profile([layer(f"layer{i}", [cost(1000)]) for i in range(4)], micro_batches=(1, 2))


def partitioned(**given: Any) -> Any:
    return autopipe.partition(
        given.pop("profile", small_profile()), **{"gpus": 2, "batch_size": 8, "time_limit_s": 0.3, **given}
    )


def clustered(**given: Any) -> Any:
    link = Link(**{name: given.pop(name) for name in ("latency_ns", "bytes_per_s") if name in given})
    return partitioned(gpus=None, cluster=Cluster(devices=(Device(**given), Device()), intra_node=link))


def parameters(function: Any, *without: str) -> list[str]:
    return sorted(set(inspect.signature(function).parameters) - {"self", *without})


def sampled(**given: Any) -> Any:
    sampler = autopipe.ReplicaSampler(**{"samples": 8, "batch_size": 4, "replica": 0, "replicas": 2, **given})
    return len(sampler), next(iter(sampler), None)


def scheduled(**given: Any) -> Any:
    # Not the largest that are made: they take seconds.
    if any(isinstance(value, int) and 64 < value < 8_000_000 for value in given.values()):
        return None
    return make(**{"name": "1f1b", "stages": 2, "micro_batches": 4, **given})


Call = tuple[Callable[..., Any], Sequence[str]]
CALLS: dict[str, Call] = {
    "partition": (partitioned, parameters(autopipe.partition)),
    "cluster": (clustered, [*parameters(Device), "latency_ns", "bytes_per_s"]),
    "uniform": (lambda **given: Cluster.uniform(**{"gpus": 2, **given}), parameters(Cluster.uniform)),
    "capture": (
        lambda **given: autopipe.capture(**{"model": MODEL, "example": EXAMPLE, **given}),
        parameters(autopipe.capture),
    ),
    "profile": (
        lambda **given: autopipe.profile(
            **{"model": MODEL, "example": EXAMPLE, "target": EXAMPLE[0], "loss_fn": LOSS, "device": "a10", **given}
        ),
        parameters(autopipe.profile),
    ),
    "draw_seed": (
        lambda **given: autopipe.draw_seed(**{"seed": 0, "step": 0, "micro_batch": 0, "node": "relu", **given}),
        parameters(autopipe.draw_seed),
    ),
    "ReplicaSampler": (sampled, parameters(autopipe.ReplicaSampler)),
    "MicroBatches": (autopipe.MicroBatches, ["items"]),
    "schedule": (scheduled, parameters(make)),
}


@pytest.mark.parametrize("name", CALLS)
@QUICK
@given(data=st.data())
def test_nonsense_is_refused_or_used(name: str, data: st.DataObject) -> None:
    call, names = CALLS[name]
    argument = data.draw(st.sampled_from(names))
    value = data.draw(NONSENSE)
    with contextlib.suppress(AutopipeError):
        call(**{argument: value})


class Trained:
    """A pipeline of two thread-ranks, its plan, and a checkpoint of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profile = autopipe.profile(MODEL, EXAMPLE, target=EXAMPLE[0], loss_fn=LOSS, device="a10")
        self.plan = autopipe.partition(self.profile, gpus=2, batch_size=4, micro_batch_size=2)
        self.pipe = self.made()
        self.pipe.step(BATCH, target=BATCH)
        self.optimizer = torch.optim.AdamW(self.pipe.parameters())
        self.checkpoint = self.pipe.save(folder / "good", optimizer=self.optimizer).wait()

    def made(self, **given: Any) -> Any:
        return autopipe.pipeline(**{"model": MODEL, "plan": self.plan, "loss_fn": LOSS, **given})

    def stepped(self, **given: Any) -> None:
        pipe = self.made(**given)
        try:
            pipe.step(BATCH, target=BATCH)
        finally:
            pipe.close()

    def batches(self, loader: Any) -> None:
        for _, _ in zip(range(3), self.pipe.batches(loader), strict=False):
            pass

    def calls(self) -> dict[str, Call]:
        pipe, own = self.pipe, self.folder / "own"
        state = pipe.full_state_dict()
        return {
            "pipeline": (self.stepped, parameters(autopipe.pipeline, "compile", "compile_options")),
            "split": (
                lambda **given: autopipe.split(**{"model": MODEL, "plan": self.plan, **given}),
                ["model", "plan"],
            ),
            "step": (
                lambda **given: pipe.step(given.pop("input", BATCH), **{"target": BATCH, **given}),
                ["input", "target", "weight", "scale", "unknown"],
            ),
            "evaluate": (
                lambda **given: pipe.evaluate(given.pop("input", BATCH), **{"target": BATCH, **given}),
                ["input", "target", "weight"],
            ),
            "predict": (lambda **given: pipe.predict(given.pop("input", BATCH), **given), ["input", "everywhere"]),
            "cut already": (lambda item: pipe.step(autopipe.MicroBatches([item, item]), target=BATCH), ["item"]),
            "batches": (self.batches, ["loader"]),
            "clip_grad_norm_": (
                lambda **given: pipe.clip_grad_norm_(**{"max_norm": 1.0, **given}),
                ["max_norm", "norm_type"],
            ),
            "sum_over_ranks": (pipe.sum_over_ranks, ["number"]),
            "train": (pipe.train, ["mode"]),
            "register_comm_hook": (
                lambda **given: pipe.register_comm_hook(**{"state": None, "hook": None, **given}),
                ["state", "hook"],
            ),
            "watch_drift": (pipe.watch_drift, ["every", "threshold"]),
            "load_state_dict": (
                lambda **given: pipe.load_state_dict(given.get("state", {**state, "0.weight": given.get("entry")})),
                ["state", "entry"],
            ),
            "save": (
                lambda **given: pipe.save(**{"folder": own, **given}).wait(),
                ["optimizer", "scheduler", "scaler", "step", "data", "keep", "in_background"],
            ),
            "save to": (lambda folder: pipe.save(own / folder), ["folder"]),
            "save_full": (lambda path: pipe.save_full(own / path), ["path"]),
            "load": (
                lambda **given: pipe.load(**{"folder": self.checkpoint, **given}),
                ["folder", "optimizer", "scheduler", "scaler", "data", "random_state", "required"],
            ),
            "load_checkpoint": (
                lambda **given: autopipe.load_checkpoint(**{"folder": self.checkpoint, "model": MODEL, **given}),
                parameters(autopipe.load_checkpoint),
            ),
            "GradScaler": (
                lambda **given: autopipe.GradScaler(**{"pipe": pipe, **given}),
                ["pipe", "init_scale", "growth_factor", "growth_interval", "enabled", "unknown"],
            ),
        }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    found = Trained(tmp_path_factory.mktemp("checkpoints"))
    yield found
    found.pipe.close()
    with pytest.raises(InputError, match="is closed"):
        found.pipe.step(BATCH, target=BATCH)


METHODS = (
    "pipeline", "split", "step", "evaluate", "predict", "cut already", "batches", "clip_grad_norm_", "sum_over_ranks",
    "train", "register_comm_hook", "watch_drift", "load_state_dict", "save", "save to", "save_full", "load",
    "load_checkpoint", "GradScaler",
)  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore")
@QUICK
@given(data=st.data())
def test_a_pipeline_given_nonsense_refuses_it_and_goes_on(trained: Trained, name: str, data: st.DataObject) -> None:
    call, names = trained.calls()[name]
    argument = data.draw(st.sampled_from(names))
    value = data.draw(NONSENSE)
    if argument in ("folder", "path") and name.startswith("save"):
        value = value if isinstance(value, str) else "x"  # relative to a folder of the test's own
        value = value.lstrip("/").replace("..", "")
    with contextlib.suppress(AutopipeError):
        call(**{argument: value})
    trained.pipe._drift = None


def test_a_pipeline_works_after_all_that(trained: Trained) -> None:
    assert torch.isfinite(trained.pipe.evaluate(BATCH, target=BATCH))
    left = [path for path in trained.folder.rglob("*") if path.name.startswith(".") and path.name != ".metadata"]
    assert left == []


def used(document: Document, trained: Trained) -> None:
    """Use a document made by hand in every way that there is."""
    repr(document)
    plan = document if isinstance(document, Plan) else trained.plan
    own = document if isinstance(document, Profile) else trained.profile
    uses: list[Callable[[], Any]] = [
        lambda: chrome_trace(simulate_plan(plan)),
        lambda: report_page(plan, simulate_plan(trained.plan), profile=own),
        lambda: rescored(plan, own),
        lambda: trade_offs(plan, own),
        lambda: autopipe.split(MODEL, plan),
        lambda: trained.stepped(plan=plan),
        lambda: autopipe.partition(own, gpus=2, batch_size=4, time_limit_s=0.3),
        *(lambda to=to: export(plan, to, profile=own) for to in NAMES),
    ]
    for use in uses:
        with contextlib.suppress(AutopipeError):
            use()


def changed(value: Any, data: st.DataObject) -> Any:
    """Return a struct or tuple with one of its fields, however deep, another."""
    if isinstance(value, msgspec.Struct) and value.__struct_fields__:
        name = data.draw(st.sampled_from(value.__struct_fields__))
        return msgspec.structs.replace(value, **{name: changed(getattr(value, name), data)})
    if isinstance(value, tuple) and value and data.draw(st.integers(0, 3)):
        index = data.draw(st.integers(0, len(value) - 1))
        return (*value[:index], changed(value[index], data), *value[index + 1 :])
    return data.draw(NONSENSE | st.integers(-2, 6))


@pytest.mark.filterwarnings("ignore")
@settings(QUICK, max_examples=20)
@given(data=st.data())
def test_a_document_made_by_hand_is_refused_or_used(trained: Trained, data: st.DataObject) -> None:
    used(changed(data.draw(st.sampled_from([trained.plan, trained.profile])), data), trained)


def test_a_document_that_contradicts_itself_is_refused_in_a_sentence(trained: Trained) -> None:
    plan = msgspec.structs.replace(trained.plan, pipeline_size=3)
    for use in (simulate_plan, lambda plan: export(plan, "megatron"), lambda plan: autopipe.split(MODEL, plan)):
        with pytest.raises(DocumentError, match=r"does not hold together as an autopipe\.plan document: .* 3"):
            use(plan)
    with pytest.raises(DocumentError, match=r"does not hold together as an autopipe\.plan document"):
        trained.stepped(plan=plan)
    with pytest.raises(DocumentError, match=r"Expected `int`, got `str` - at `\$\.stages\[0\]\.end`"):
        simulate_plan(msgspec.structs.replace(plan, stages=(msgspec.structs.replace(plan.stages[0], end="1"),)))
    own = msgspec.structs.replace(trained.profile, micro_batches=(2, 1))
    with pytest.raises(DocumentError, match=r"micro_batches is \(2, 1\), not ascending"):
        autopipe.partition(own, gpus=2, batch_size=4)


class Raising(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("my own mistake")


def raising_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    raise ZeroDivisionError("my own mistake")


def test_what_the_users_code_raises_is_told_and_chained(trained: Trained) -> None:
    with pytest.raises(CaptureError, match="my own mistake") as found:
        autopipe.capture(Raising(), BATCH)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    with pytest.raises(ProfileError, match=r"ZeroDivisionError.*my own mistake") as measured:
        autopipe.profile(MODEL, BATCH, target=BATCH, loss_fn=raising_loss, budget_s=0.01)
    assert isinstance(measured.value.__cause__, ZeroDivisionError)
    with pytest.raises(StepError, match="my own mistake") as stepped:
        trained.stepped(loss_fn=raising_loss)
    assert isinstance(stepped.value.__cause__, ZeroDivisionError)
