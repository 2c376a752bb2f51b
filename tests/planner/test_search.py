"""The whole planner: plans from profiles."""

import random
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.documents.files import encode
from autopipe.documents.profile import ProfiledValue, SharedParameter
from autopipe.errors import DocumentError, InfeasibleError, InputError
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.planner import engines, evaluate
from autopipe.planner import solved as solved_room
from autopipe.planner.bounds import everything, frontier
from autopipe.planner.ilp import solve
from autopipe.planner.kind import Kind
from autopipe.planner.problem import objective_ns
from autopipe.planner.score import score
from tests.planner.instances import every_split, least_objective, plan, problem_of
from tests.profiles import chain_profile, cost, layer, profile, profiles


def sizes_profile(count: int, sizes: tuple[int, ...], **figures: int):
    """Equal layers whose time is 100 + 10 per sample: larger micro-batches compute less in all."""
    costs = [cost(100 + 10 * size, saved_bytes=size) for size in sizes]
    return profile([layer(f"layer{i}", costs, **figures) for i in range(count)], micro_batches=sizes)


def bounds_of(found):
    return (*(stage.begin for stage in found.stages), found.stages[-1].end)


@pytest.mark.parametrize(
    ("layers", "stages"),
    [(count, stages) for count in range(1, 10) for stages in range(1, 6) if stages <= count]
    + [(30, 4), (42, 16), (38, 8)],
)
def test_every_layer_is_in_exactly_one_stage_and_no_stage_is_empty(layers, stages):
    """Splits that went wrong elsewhere: Megatron#1304, DeepSpeed#5078, #4053, #4312."""
    found = plan(chain_profile([10] * layers), Cluster.uniform(stages), batch_size=64, micro_batch_size=1)
    bounds = bounds_of(found)
    assert [stage.end for stage in found.stages[:-1]] == [stage.begin for stage in found.stages[1:]]
    assert (bounds[0], bounds[-1], len(found.stages)) == (0, layers, stages)
    sizes = [end - begin for begin, end in pairwise(bounds)]
    assert min(sizes) >= 1
    assert max(sizes) == -(-layers // stages)
    assert [name for stage in found.stages for name in stage.layers] == [f"layer{i}" for i in range(layers)]


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_fewer_layers_than_stages_are_refused_with_what_would_fit(layers):
    with pytest.raises(InfeasibleError, match=f"--gpus {layers}"):
        plan(chain_profile([10] * layers), Cluster.uniform(5), batch_size=4)


def test_forbidden_cuts_count_against_the_stages():
    found = profile([layer(name, [cost()]) for name in "abcd"], forbidden_cuts=(1, 3))
    assert bounds_of(plan(found, Cluster.uniform(2), batch_size=2)) == (0, 2, 4)
    with pytest.raises(InfeasibleError, match="legal cuts"):
        plan(found, Cluster.uniform(3), batch_size=2)


def test_a_heavy_last_layer_stands_alone():
    found = plan(chain_profile([10, 10, 10, 30]), Cluster.uniform(2), batch_size=8)
    assert bounds_of(found) == (0, 3, 4)
    assert (found.step_ns, found.certificate.step_bound_ns) == (810, 810)
    assert found.certificate.gap == found.certificate.solver_gap == 0
    assert found.certificate.status == "optimal"


def test_1f1b_wins_a_tie_against_gpipe():
    found = plan(chain_profile([10, 10]), Cluster.uniform(2), batch_size=8)
    assert found.schedule == "1f1b"
    other = next(one for one in found.alternatives if one.schedule == "gpipe")
    assert other.step_ns == found.step_ns
    assert other.reason.startswith("as fast")


def test_the_micro_batch_size_balances_idle_time_against_fixed_costs():
    """With 4 stages and 16 samples: 16 of 1 take 19 * 330, 4 of 4 take 7 * 420, 2 of 8 take 5 * 540."""
    found = plan(sizes_profile(4, (1, 2, 4, 8, 16)), Cluster.uniform(4), batch_size=16)
    steps = {size: (-(-16 // size) + 3) * 3 * (100 + 10 * size) for size in (1, 2, 3, 4, 6, 8, 16)}
    best = min(steps, key=steps.__getitem__)
    assert (found.micro_batch_size, found.step_ns) == (best, steps[best])
    assert found.micro_batches == -(-16 // best)
    assert found.certificate.step_bound_ns == steps[best]


def test_memory_forces_smaller_micro_batches():
    free = plan(sizes_profile(2, (1, 8)), Cluster.uniform(2), batch_size=8)
    tight = plan(sizes_profile(2, (1, 8)), Cluster.uniform(2, memory_bytes=4), batch_size=8)
    assert tight.micro_batch_size < free.micro_batch_size
    assert all(rank.peak_bytes <= 4 for rank in tight.ranks)
    assert any(one.step_ns is None and "does not fit" in one.reason for one in tight.alternatives)


def test_memory_moves_a_boundary_and_is_named_as_what_binds():
    layers = [layer("big", [cost(10)], parameter_bytes=100), *(layer(name, [cost(10)]) for name in "abc")]
    heavy = [*layers[:1], layer("big2", [cost(10)], parameter_bytes=100), *layers[2:]]
    free = plan(profile(heavy), Cluster.uniform(2), batch_size=4)
    tight = plan(profile(heavy), Cluster.uniform(2, memory_bytes=500), batch_size=4)
    assert bounds_of(free) == (0, 2, 4)
    assert bounds_of(tight) == (0, 1, 4)
    assert "Memory binds" in tight.binding
    assert "Memory binds" not in free.binding


def test_one_device_that_would_be_faster_is_said_to_be():
    slow = Cluster.uniform(2, intra_node=Link(latency_ns=10_000))
    found = plan(chain_profile([10, 10]), slow, batch_size=2)
    assert found.pipeline_size == 2
    alone = next(one for one in found.alternatives if one.pipeline_size == 1)
    assert alone.step_ns == 120
    assert found.binding.startswith("One device alone would be faster")


def test_a_single_device_is_a_plan():
    found = plan(chain_profile([10, 10]), Cluster.uniform(1), batch_size=3)
    assert (found.step_ns, found.bubble_ratio, found.edges) == (180, 0.0, ())


def test_fixed_choices_are_kept():
    found = plan(
        sizes_profile(4, (1, 4)),
        Cluster.uniform(4),
        batch_size=8,
        micro_batch_size=2,
        schedule="gpipe",
        stages=2,
        replicas=2,
    )
    assert (found.micro_batch_size, found.schedule, found.pipeline_size) == (2, "gpipe", 2)
    assert (found.data_parallel_size, found.batch_size, found.micro_batches) == (2, 4, 2)
    assert all(one.pipeline_size == 2 for one in found.alternatives)


def test_a_slower_device_gets_fewer_layers():
    cluster = Cluster(devices=(Device(speed=0.5), Device()))
    found = plan(chain_profile([10] * 6), cluster, batch_size=8)
    assert bounds_of(found) == (0, 2, 6)


def test_tied_layers_are_kept_together_where_summing_their_gradients_costs_more():
    layers = [layer(name, [cost(time)], parameter_bytes=1000) for name, time in (("a", 10), ("b", 10), ("c", 10))]
    shared = (SharedParameter(name="tied", layers=(1, 2), bytes=1000),)
    cluster = Cluster.uniform(2, intra_node=Link(latency_ns=100))
    found = plan(profile(layers, shared=shared), cluster, batch_size=1)
    assert bounds_of(found) == (0, 1, 3)
    assert [stage.tied_ns for stage in found.stages] == [0, 0]


def test_memory_and_links_that_the_cluster_leaves_open_come_from_the_profile():
    found = chain_profile([10, 10])
    found = profile(found.layers, device_memory_bytes=10**6, link_latency_ns=5, link_bytes_per_s=10**9)
    made = plan(found, Cluster.uniform(2), batch_size=2)
    assert [rank.memory_limit_bytes for rank in made.ranks] == [10**6, 10**6]
    assert (made.link_latency_ns, made.link_bytes_per_s) == (5, 10**9)
    assert (made.edges[0].latency_ns, made.edges[0].bytes_per_s) == (5, 10**9)


@settings(deadline=None, max_examples=15)
@given(data=st.data(), batch=st.integers(1, 6))
def test_the_plan_is_within_its_gap_of_the_best_split_there_is(data, batch):
    found = data.draw(profiles(max_layers=6))
    stages = data.draw(st.integers(1, min(3, len(found.layers))))
    made = plan(found, Cluster.uniform(stages, intra_node=Link(latency_ns=3)), batch_size=batch)
    problem = problem_of(
        found,
        cluster=Cluster.uniform(stages, intra_node=Link(latency_ns=3)),
        stages=stages,
        micro_batches=batch,
    )
    best = min(score(problem, bounds).step_ns for bounds in every_split(problem))
    assert made.certificate.step_bound_ns <= min(best, made.step_ns)
    assert made.step_ns <= best * (1 + made.certificate.gap) + 1
    again = plan(found, Cluster.uniform(stages, intra_node=Link(latency_ns=3)), batch_size=batch)
    assert encode(again) == encode(made)


@settings(deadline=None, max_examples=15)
@given(data=st.data(), limit=st.integers(0, 400))
def test_it_refuses_exactly_where_no_split_fits(data, limit):
    found = data.draw(profiles(max_layers=5))
    stages = data.draw(st.integers(1, min(3, len(found.layers))))
    cluster = Cluster.uniform(stages, memory_bytes=limit + 1)
    fits = any(
        next(
            every_split(problem_of(found, cluster=cluster, stages=stages, micro_batches=4, kind=Kind(schedule=name))),
            None,
        )
        for name in ("1f1b", "gpipe")
    )
    try:
        made = plan(found, cluster, batch_size=4)
    except InfeasibleError:
        assert not fits
    else:
        assert fits
        assert all(rank.peak_bytes <= limit + 1 for rank in made.ranks)


def test_without_time_the_dynamic_programme_answers_and_says_so():
    found = plan(chain_profile([10, 20, 30, 40]), Cluster.uniform(2), batch_size=8, time_limit_s=0)
    assert (found.certificate.status, found.certificate.engine) == ("feasible", "dynamic programme")
    assert bounds_of(found) == (0, 3, 4)


def test_an_engine_that_fails_does_not_take_the_plan_with_it(monkeypatch):
    """nnscaler#13: a solver died and so did the planner."""
    monkeypatch.setattr(solved_room, "solve", lambda *_, **__: None)
    found = plan(chain_profile([10, 20, 30, 40]), Cluster.uniform(2), batch_size=8)
    assert (found.certificate.status, found.certificate.engine) == ("heuristic", "dynamic programme")
    assert found.certificate.gap < 0.01


def test_where_every_engine_dies_the_dynamic_programme_answers_with_its_true_gap(monkeypatch):
    def dies(*_, **__):
        raise MemoryError("planted")

    monkeypatch.setattr(engines, "RUNNERS", dict.fromkeys(engines.RUNNERS, dies))
    layers = [layer(f"l{i}", [cost(time)], optimizer_ns=40 * i) for i, time in enumerate((10, 20, 30, 40))]
    with pytest.warns(RuntimeWarning, match="cbc failed"):
        found = plan(profile(layers), Cluster.uniform(2), batch_size=8, schedule="1f1b")
    proof = found.certificate
    assert (proof.status, proof.engine) == ("heuristic", "dynamic programme")
    assert proof.objective_bound_ns <= proof.objective_ns
    assert proof.solver_gap == pytest.approx(1 - proof.objective_bound_ns / proof.objective_ns)
    assert proof.solver_gap > 0


def test_a_hundred_layers_on_eight_stages_are_solved_to_the_end_with_few_programmes(monkeypatch):
    times = [1000 + (index * 7919) % 977 for index in range(98)]
    layers = [
        layer(f"layer{index}", [cost(time, saved_bytes=50)], parameter_bytes=10) for index, time in enumerate(times)
    ]
    cluster = Cluster.uniform(8, memory_bytes=4_700, intra_node=Link(latency_ns=20, bytes_per_s=10**9))
    programmes = []

    def counted(problem, reduction, **asked):
        programmes.append(len(reduction.arcs))
        return solve(problem, reduction, **asked)

    monkeypatch.setattr(solved_room, "solve", counted)
    found = plan(profile(layers, crossing_bytes=10), cluster, batch_size=32, schedule="1f1b")
    assert len(programmes) == 1
    assert programmes[0] < 100
    assert (found.certificate.status, found.certificate.solver_gap) == ("optimal", 0.0)
    assert found.certificate.gap < 0.01
    assert max(rank.peak_bytes for rank in found.ranks) > 0.9 * 4_700


def test_where_no_gradient_comes_back_no_stage_waits_for_one():
    """Forwards alone over a slow link: a round trip that is never made would speak for unequal stages."""
    layers = [layer(f"l{index}", [cost(10, 0)]) for index in range(6)]
    values = [
        ProfiledValue(name=f"v{at}", producer=at, consumers=(at + 1,), requires_grad=False, bytes=(size,))
        for at, size in enumerate((30, 30, 30, 30, 1))
    ]
    cluster = Cluster.uniform(2, intra_node=Link(bytes_per_s=10**9))
    asked = {"batch_size": 16, "schedule": "1f1b", "micro_batch_size": 1}
    found = plan(profile(layers, values), cluster, **asked)
    assert bounds_of(found) == (0, 3, 6)
    assert found.certificate.objective_ns == found.step_ns == 15 * 30 + 30 + 30 + 30


def test_behind_frozen_layers_the_programme_agrees_with_every_split():
    layers = [layer(f"l{index}", [cost(10, 0 if index < 3 else 20)]) for index in range(7)]
    values = [
        ProfiledValue(name=f"v{at}", producer=at, consumers=(at + 1,), requires_grad=at >= 3, bytes=(20,))
        for at in range(6)
    ]
    cluster = Cluster.uniform(3, intra_node=Link(latency_ns=5, bytes_per_s=10**9))
    problem = problem_of(profile(layers, values), cluster=cluster, stages=3, micro_batches=9)
    known, least = frontier(problem), least_objective(problem)
    found = solve(problem, everything(problem))
    assert known is not None
    assert found is not None
    assert found.objective_ns == objective_ns(problem, known.best.bounds) == least


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"batch_size": 0}, "cannot be cut"),
        ({"batch_size": 2, "micro_batch_size": 4}, "no larger"),
        ({"batch_size": 2, "stages": 3}, "3 stages cannot be put on 2 devices"),
        ({"batch_size": 2, "stages": 0}, "0 stages"),
        ({"batch_size": 2, "schedule": "forward"}, "cannot be planned"),
        ({"batch_size": 2, "engine": "abacus"}, "choose from highs"),
        ({"batch_size": 1 << 59}, "36 years"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        plan(chain_profile([10, 10]), Cluster.uniform(2), **options)


def test_a_batch_below_the_smallest_profiled_size_is_refused_with_what_to_profile():
    with pytest.raises(InputError, match="--micro-batch 3"):
        plan(sizes_profile(2, (4, 8)), Cluster.uniform(2), batch_size=3)


def test_a_broken_profile_is_refused_by_its_path():
    with pytest.raises(DocumentError, match="forward_ns is -5"):
        plan(chain_profile([10, -5]), Cluster.uniform(2), batch_size=2)


def test_planning_never_imports_torch():
    code = (
        "import sys\n"
        "from tests.profiles import chain_profile\n"
        "from autopipe.hardware.cluster import Cluster\n"
        "from autopipe.planner import Request, plan, simulate_plan\n"
        "simulate_plan(plan(chain_profile([1, 2, 3]), Cluster.uniform(2), Request(batch_size=4)))\n"
        "assert 'torch' not in sys.modules\n"
        "import autopipe.hardware.cluster, autopipe.schedules.check, autopipe.schedules.grid\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_given_split_is_scored_like_a_planned_one():
    found, cluster = chain_profile([10, 20, 30, 40]), Cluster.uniform(2)
    made = plan(found, cluster, batch_size=8, schedule="1f1b")
    given_back = evaluate(found, cluster, bounds_of(made), batch_size=8, micro_batch_size=1, depth=made.depth)
    assert (given_back.step_ns, given_back.stages, given_back.ranks) == (made.step_ns, made.stages, made.ranks)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_was_considered_and_not_taken_is_faster_than_the_plan(seed):
    draw = random.Random(seed)
    layers = [
        layer(f"layer{i}", [cost(draw.randint(5, 90), saved_bytes=draw.randint(0, 40))], parameter_bytes=9)
        for i in range(16)
    ]
    devices = tuple(Device(memory_bytes=10_000) for _ in range(4))
    found = plan(profile(layers, crossing_bytes=3), Cluster(devices=devices), batch_size=4, micro_batch_size=1)
    assert all(one.step_ns >= found.step_ns for one in found.alternatives if one.solved and one.step_ns is not None)
