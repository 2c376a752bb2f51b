"""Layers are put in another order where stages on the graph are better than stages in a row, and train the same."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import autopipe
from autopipe.costs.validity import check_profile
from autopipe.documents.profile import ProfiledValue
from autopipe.errors import InputError
from autopipe.executor.layout import Layout
from autopipe.executor.pipeline import Pipeline
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner import Request
from autopipe.planner import plan as plan_any_order
from autopipe.planner.dag import topological_order
from autopipe.planner.reordering import must_precede, order_of_stages, reordered
from autopipe.planner.search import plan as plan_as_recorded
from autopipe.recorder import rebuild
from tests import profiles
from tests.reference import differences, exempt, plain_step

ONE_EACH = {"replicas": 1, "virtual": 1}


def plan(profile, cluster, **asked):
    return plan_any_order(profile, cluster, Request(**{**ONE_EACH, **asked}))


def plan_in_order(profile, cluster, **asked):
    return plan_as_recorded(profile, cluster, Request(**{**ONE_EACH, **asked}))


SLOW = Link(latency_ns=0, bytes_per_s=10**9)


def value(producer: int, *consumers: int, size: int = 1000) -> ProfiledValue:
    return ProfiledValue(name=f"v{producer}", producer=producer, consumers=consumers, requires_grad=True, bytes=(size,))


def towers(length: int, **fields: object):
    """One input, two towers that are recorded layer by layer and whose inner values are dear, one join."""
    last = 2 * length + 1
    values = [value(0, 1, 2, size=1)]
    values += [value(layer, layer + 2, size=400) for layer in range(1, last - 2)]
    values += [value(last - 2, last, size=1), value(last - 1, last, size=1)]
    layers = [profiles.layer(f"layer{index}", [profiles.cost(100)]) for index in range(last + 1)]
    return profiles.profile(layers, values, **fields)


def test_towers_that_were_recorded_in_turns_become_a_stage_each():
    profile = towers(4)
    cluster = Cluster.uniform(2, intra_node=SLOW)
    found = plan(profile, cluster, batch_size=16)
    linear = plan_in_order(profile, cluster, batch_size=16)
    assert found.step_ns < linear.step_ns
    assert "not as they were recorded" in found.binding
    first, second = (set(stage.layers) for stage in found.stages)
    assert {f"layer{index}" for index in (1, 3, 5, 7)} <= first or {f"layer{index}" for index in (2, 4, 6, 8)} <= first
    assert len(first | second) == 10


def test_a_row_of_layers_is_planned_as_it_is():
    profile = profiles.profile([profiles.layer(f"layer{index}", [profiles.cost(100)]) for index in range(6)])
    cluster = Cluster.uniform(2, intra_node=SLOW)
    assert plan(profile, cluster, batch_size=8) == plan_in_order(profile, cluster, batch_size=8)


def test_layers_that_no_cut_may_part_stay_neighbours():
    profile = towers(4, forbidden_cuts=(3,))
    with pytest.raises(InputError):
        reordered(profile, (0, 1, 3, 2, 4, 5, 6, 7, 8, 9))
    moved = reordered(profile, (0, 1, 2, 3, 5, 7, 4, 6, 8, 9))
    assert moved.forbidden_cuts == (3,)
    check_profile(moved)


def test_a_layer_cannot_run_before_what_it_needs():
    with pytest.raises(InputError, match="'layer3' cannot run before 'layer1'"):
        reordered(towers(2), (0, 3, 1, 2, 4, 5))


@given(profile=profiles.profiles(max_layers=8), data=st.data())
@settings(max_examples=80, deadline=None)
def test_any_order_that_keeps_what_must_precede_is_a_usable_profile(profile, data):
    edges = sorted(set(must_precede(profile)))
    stages = data.draw(st.lists(st.integers(0, 3), min_size=len(profile.layers), max_size=len(profile.layers)))
    for layer in topological_order(len(stages), edges):
        stages[layer] = max([stages[layer], *(stages[first] for first, second in edges if second == layer)])
    order = order_of_stages(edges, stages)
    try:
        moved = reordered(profile, order)
    except InputError:
        assert profile.forbidden_cuts
        return
    check_profile(moved)
    assert [layer.name for layer in moved.layers] == [profile.layers[index].name for index in order]
    back = reordered(moved, [order.index(layer) for layer in range(len(order))])
    assert {frozenset(v.consumers) for v in back.values} == {frozenset(v.consumers) for v in profile.values}


class Towers(nn.Module):
    """Two towers from one input, called in turns, with dropout and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.left = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(3))
        self.right = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        left = right = self.stem(x)
        for one, other in zip(self.left, self.right, strict=True):
            left, right = one(left), other(right)
        return self.head(torch.cat([left, right], dim=1))


def test_a_reordered_graph_trains_as_the_plain_model_bit_for_bit():
    torch.manual_seed(3)
    model = Towers()
    plain = copy.deepcopy(model)
    inputs, target = torch.randn(8, 8), torch.randn(8, 4)
    measured = autopipe.profile(
        model, (inputs,), target=target, loss_fn=nn.functional.mse_loss, micro_batches=(2,), budget_s=0.3
    )
    assert measured.graph is not None
    towers_of = [2 if "right" in layer.name else 0 for layer in measured.layers]
    edges = sorted(set(must_precede(measured)))
    for layer in topological_order(len(towers_of), edges):
        towers_of[layer] = max([towers_of[layer], *(towers_of[a] for a, b in edges if b == layer)])
    order = order_of_stages(edges, towers_of)
    assert list(order) != sorted(order)
    moved = reordered(measured, order)
    boundary = sum(stage == 0 for stage in towers_of)
    layout = Layout(
        bounds=(0, boundary, len(order)), stage_ranks=(0, 1), schedule="1f1b", micro_batches=4, virtual_stages=1
    )
    pipe = Pipeline(rebuild(model, moved.graph), moved.graph, layout, loss_fn=nn.functional.mse_loss, ranks=2)
    for _ in range(2):
        loss = pipe.step(inputs, target=target)
        wanted = plain_step(plain, nn.functional.mse_loss, (inputs,), target, 4)
        assert torch.equal(torch.as_tensor(loss), wanted)
        assert differences(model, plain, exempt(moved.graph, layout.bounds, (0, 1), model)) == []
    pipe.close()
