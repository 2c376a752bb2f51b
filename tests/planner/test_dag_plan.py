"""Graphs are cut into convex stages as well as trying every cut does, and the answer says how good it is."""

import json
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.errors import InfeasibleError, InputError
from autopipe.planner import dag_plan
from autopipe.planner.dag import stage_loads
from autopipe.planner.dag_document import as_plan, assignment
from autopipe.planner.dag_plan import BOUNDED, LISTED, plan_dag
from autopipe.planner.dag_recompute import cheapest
from autopipe.planner.imported.bench import read_bench
from autopipe.planner.writing import simulate_plan
from tests.planner.graphs import INFINITE, bench_json, dags, least_bottleneck, two_towers

CLOSE = 1e-9
BENCH = Path(os.environ.get("AUTOPIPE_PLAN_BENCH", Path(__file__).parents[3] / "shared" / "bench"))

# Seconds, from the publications' own exact programmes or from an exact search over closed sets.
KNOWN = {
    "layer_bert24_training_bw16": 0.042786576,
    "layer_resnet50_inference": 0.03422285156249999,
    "op_bert_l-3_training": 0.0653031491220861,
    "op_resnet50_training": 0.26303528860223224,
    "pd_alexnet_k4_bw16": 0.038142968,
    "pd_resnet101_k8_bw16": 0.07620111199999999,
    "piper_resnet50_k8_8g": 0.06406010937500001,
    "piper_resnet50_k16_4g": 0.0372523671875,
}


def read(graph: dict, **options: object):
    options = {"devices": None, "memory_bytes": None, **options}
    return read_bench(msgspec.json.encode(graph), origin="graph", bytes_per_s=1.0, **options)


@given(dag=dags())
@settings(max_examples=60, deadline=None)
def test_no_cut_into_convex_stages_is_better(dag):
    plan = plan_dag(dag)
    assert plan.bottleneck_s == pytest.approx(least_bottleneck(dag), rel=CLOSE)
    assert plan.is_optimal


@given(dag=dags(most=6, memory=True, recompute=True))
@settings(max_examples=120, deadline=None)
def test_memory_and_recompute_are_chosen_as_by_trying_all(dag):
    least = least_bottleneck(dag)
    if least == INFINITE:
        with pytest.raises(InfeasibleError, match="a device"):
            plan_dag(dag)
        return
    plan = plan_dag(dag)
    assert plan.bottleneck_s == pytest.approx(least, rel=CLOSE)
    assert all(load.memory_bytes <= dag.memory_bytes for load in plan.loads)


@given(dag=dags(most=7), data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_number_of_stages_that_is_asked_for_is_made(dag, data):
    stages = data.draw(st.integers(1, min(dag.devices, dag.nodes)))
    plan = plan_dag(dag, stages=stages)
    assert len(plan.loads) == stages
    assert plan.bottleneck_s == pytest.approx(least_bottleneck(dag, exactly=stages), rel=CLOSE)


@given(dag=dags())
@settings(max_examples=40, deadline=None)
def test_branch_and_bound_finds_and_proves_the_same(dag):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dag_plan, "MOST_SETS", 0)
        plan = plan_dag(dag)
    least = least_bottleneck(dag)
    assert plan.engine == BOUNDED
    assert plan.bound_s <= least * (1 + CLOSE)
    assert plan.bottleneck_s == pytest.approx(least, rel=1e-6)
    assert plan.gap < 1e-6


@given(dag=dags(most=6, memory=True, recompute=True))
@settings(max_examples=40, deadline=None)
def test_branch_and_bound_never_claims_more_than_is_true_under_memory(dag):
    least = least_bottleneck(dag)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dag_plan, "MOST_SETS", 0)
        try:
            plan = plan_dag(dag)
        except InfeasibleError as error:
            found_none = str(error)
        else:
            found_none = ""
    if found_none:
        assert least == INFINITE or "was found in time" in found_none
        return
    assert plan.bound_s <= least * (1 + CLOSE)
    assert plan.bottleneck_s >= least * (1 - CLOSE)


@given(
    items=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=9),
    needed=st.integers(-3, 90),
)
def test_the_cheapest_recompute_is_the_best_of_all_choices(items, needed):
    saved, extra = (np.array([item[side] for item in items], dtype=np.float64) for side in (0, 1))
    sums = [
        float(extra[list(chosen)].sum())
        for choice in range(1 << len(items))
        if saved[(chosen := [at for at in range(len(items)) if choice >> at & 1])].sum() >= needed
    ]
    found = cheapest(saved, extra, float(needed))
    if not sums:
        assert found is None
        return
    assert found is not None
    assert found[0] == min(sums)
    assert saved[found[1]].sum() >= needed
    assert extra[found[1]].sum() == found[0]


def test_each_tower_is_a_stage_where_handing_over_is_dear():
    dag = read(two_towers(6))
    plan = plan_dag(dag)
    towers = [{plan.stage_of[node] for node in range(first, 13, 2)} for first in (1, 2)]
    assert [len(stages) for stages in towers] == [1, 1]
    in_listed_order = min(
        max(load.seconds for load in stage_loads(dag, [int(node >= cut) for node in range(dag.nodes)]))
        for cut in range(1, dag.nodes)
    )
    assert plan.bottleneck_s < in_listed_order - 0.001


def test_a_value_that_several_nodes_of_a_stage_read_is_charged_once():
    graph = bench_json([1.0, 1.0, 1.0], [(0, 1), (0, 2)], transfer_s=0.25)
    (first, second) = plan_dag(read(graph), stages=2).loads
    assert (first.seconds, second.seconds) == (1.25, 2.25)


def test_fewer_stages_than_devices_are_used_where_more_do_not_help():
    graph = bench_json([1.0, 5.0, 1.0], [(0, 1), (1, 2)], devices=3, transfer_s=0.0)
    assert len(plan_dag(read(graph)).loads) == 3
    graph = bench_json([1.0, 5.0, 1.0], [(0, 1), (1, 2)], devices=3, transfer_s=2.0)
    assert len(plan_dag(read(graph)).loads) == 1


def test_a_node_over_the_limit_is_named_with_a_limit_that_would_do():
    graph = bench_json([1.0, 1.0, 1.0], [(0, 1), (1, 2)], memory_cap_bytes=1 << 30)
    graph["nodes"][1]["memory_fixed_bytes"] = float(3 << 30)
    with pytest.raises(InfeasibleError, match=r"1\.00 GiB a device .*node, 1, .*3\.00 GiB") as caught:
        plan_dag(read(graph))
    enough = int(str(caught.value).partition("--memory ")[2].partition("MiB")[0]) * 2**20
    assert plan_dag(read(graph, memory_bytes=enough)).is_optimal


def test_a_graph_without_time_is_refused():
    with pytest.raises(InputError, match="no time at all"):
        plan_dag(read(bench_json([0.0, 0.0], [(0, 1)])))


@given(dag=dags(memory=True, recompute=True, most=6))
@settings(max_examples=20, deadline=None)
def test_without_time_there_still_is_a_plan_with_a_true_bound(dag):
    least = least_bottleneck(dag)
    refusal = ""
    try:
        plan = plan_dag(dag, time_limit_s=0.0)
    except InfeasibleError as error:
        refusal = str(error)
    if refusal:
        assert least == INFINITE or "--time-limit" in refusal
        return
    assert plan.bound_s <= least * (1 + CLOSE)
    assert plan.bottleneck_s >= least * (1 - CLOSE)


def test_a_plan_of_an_imported_graph_can_be_simulated_and_adds_up():
    plan = plan_dag(read(two_towers(6)))
    document = as_plan(plan, micro_batches=8)
    assert simulate_plan(document).step_ns == document.step_ns
    assert [stage.forward_ns + stage.backward_ns for stage in document.stages] == [
        round(load.seconds * 1e9) for load in plan.loads
    ]
    assert document.certificate.objective_ns == round(plan.bottleneck_s * 1e9)
    assert document.step_ns >= document.certificate.step_bound_ns


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_best_known_bottleneck_of_a_public_graph_is_reached(name):
    path = BENCH / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"the public planner graphs are not beside this project ({BENCH})")
    plan = plan_dag(read(json.loads(path.read_text())))
    assert plan.engine == LISTED
    assert plan.is_optimal
    assert plan.bottleneck_s == pytest.approx(KNOWN[name], rel=1e-6)
    assert set(assignment(plan, name)["assignment"]) == set(plan.dag.names)
