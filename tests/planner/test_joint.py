"""Recompute, virtual stages, replicas, wishes and unequal devices, against every choice there is."""

from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopipe.documents.profile import SharedParameter
from autopipe.errors import InfeasibleError, InputError
from autopipe.hardware.cluster import Cluster, Device, Link
from autopipe.planner import Request
from autopipe.planner import plan as make_plan
from autopipe.planner.bounds import everything, frontier
from autopipe.planner.deadline import NEVER
from autopipe.planner.ilp import solve
from autopipe.planner.kind import Kind
from autopipe.planner.problem import objective_ns
from autopipe.planner.rank_rows import Arc, arcs_of, extra_ns, overflow_bytes
from autopipe.planner.score import score
from autopipe.planner.solved import keeps, solve_problem
from autopipe.planner.step_bound import tightest
from autopipe.planner.wishes import Wishes
from tests.planner.instances import clusters, every_split, problem_of
from tests.profiles import chain_profile, cost, layer, profile

FAR = float("inf")


@st.composite
def recomputing(draw, max_layers=5):
    """A row of layers of which some can recompute."""
    layers = []
    for index in range(draw(st.integers(2, max_layers))):
        saved = draw(st.integers(10, 60))
        figures = {"saved_bytes": saved, "transient_bytes": draw(st.integers(0, 20))}
        if draw(st.booleans()):
            figures |= {"recompute_ns": draw(st.integers(1, 20)), "saved_recompute_bytes": draw(st.integers(0, 9))}
        layers.append(layer(f"layer{index}", [cost(draw(st.integers(1, 30)), **figures)], draw(st.integers(0, 20))))
    return profile(layers, crossing_bytes=draw(st.integers(0, 9)))


def best_of_all(problem):
    """The least objective over every split and every level of every stage that fit together."""
    least = FAR
    splits = every_split(problem)
    for bounds in splits:
        if any(len({problem.stage_ranks[_stage(bounds, one)] for one in pair}) > 1 for pair in problem.together):
            continue
        spans = [(s, bounds[s], bounds[s + 1]) for s in range(problem.stages)]
        choices = [[arc.level for arc in arcs_of(problem, [span])] for span in spans]
        for levels in product(*choices):
            arcs = [Arc(*span, level) for span, level in zip(spans, levels, strict=True)]
            if not problem.coupled or overflow_bytes(problem, arcs) == 0:
                least = min(least, objective_ns(problem, bounds, [extra_ns(problem, arc) for arc in arcs]))
    return None if least == FAR else least


def _stage(bounds, layer_index):
    return next(stage for stage in range(len(bounds) - 1) if layer_index < bounds[stage + 1])


@settings(deadline=None, max_examples=40)
@given(found=recomputing(), ranks=st.integers(1, 3), limit=st.integers(60, 500), count=st.integers(1, 6))
def test_with_recompute_ilp_dynamic_programme_and_brute_force_agree(found, ranks, limit, count):
    if ranks > len(found.layers):
        return
    cluster = Cluster.uniform(ranks, memory_bytes=limit)
    problem = problem_of(found, cluster=cluster, stages=ranks, micro_batches=count, recompute=True)
    least = best_of_all(problem)
    solved = solve_problem(problem, NEVER, "highs")
    assert (None if solved is None else solved.solution.objective_ns) == least
    bound = tightest(problem)
    assert (bound is None) == (least is None)
    for bounds in every_split(problem):
        candidate = score(problem, bounds)
        assert candidate.fits
        assert bound is not None
        assert bound.step_ns <= candidate.step_ns


@st.composite
def wished(draw):
    """Up to 9 layers, up to 4 unequal ranks: memory, recompute, a tied pair, pins, forbidden cuts, layers together."""
    found = draw(recomputing(9))
    count = len(found.layers)
    one, other = draw(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)))
    tied = one != other and draw(st.booleans())
    optimizer = draw(st.booleans())
    layers = [
        msgspec.structs.replace(own, optimizer_ns=draw(st.integers(0, 20)) if optimizer else None)
        for own in found.layers
    ]
    shared = (SharedParameter(name="tied", layers=tuple(sorted((one, other))), bytes=5),) if tied else ()
    ranks = draw(st.integers(1, min(4, count)))
    places = st.integers(0, count - 1)
    wishes = Wishes(
        pins=tuple(draw(st.lists(st.tuples(places, st.integers(-ranks, ranks - 1)), max_size=1))),
        forbidden_cuts=tuple(sorted(set(draw(st.lists(st.integers(1, count - 1), max_size=2))))),
        together=draw(st.sampled_from([(), (), (tuple(sorted((one, other))),) if one != other else ()])),
    )
    return problem_of(
        profile(layers, found.values, shared=shared),
        cluster=draw(clusters(ranks)),
        stages=ranks,
        micro_batches=draw(st.integers(1, 6)),
        recompute=True,
        wishes=wishes,
    )


@settings(deadline=None, max_examples=60)
@given(problem=wished())
def test_with_every_wish_on_unequal_devices_all_three_agree(problem):
    least, known = best_of_all(problem), frontier(problem)
    solved = solve_problem(problem, NEVER, "highs")
    assert (known is None) == (solved is None) == (least is None)
    if solved is None:
        return
    assert solved.solution.objective_ns == least
    without = solve(problem, everything(problem))
    assert without is not None
    assert without.objective_ns == least
    programme_ns = problem.weight * known.best.pace_ns + known.best.total_ns
    assert programme_ns <= least
    if not problem.tied and not any(table.any() for table in problem.tail_ns):
        assert objective_ns(problem, known.best.bounds) == programme_ns == least


@settings(deadline=None, max_examples=25)
@given(
    found=recomputing(7),
    limit=st.integers(100, 900),
    count=st.integers(1, 5),
    name=st.sampled_from(["interleaved", "bfs"]),
)
def test_virtual_stages_that_share_memory_are_planned_as_brute_force_does(found, limit, count, name):
    if len(found.layers) < 4:
        return
    cluster = Cluster.uniform(2, memory_bytes=limit)
    kind = Kind(schedule=name, virtual=2)
    problem = problem_of(found, cluster=cluster, stages=2, micro_batches=count, kind=kind)
    solved = solve_problem(problem, NEVER, "highs")
    assert (None if solved is None else solved.solution.objective_ns) == best_of_all(problem)
    if solved is not None:
        assert score(problem, solved.solution.bounds, levels=solved.solution.levels).fits


def only_the_ilp(problem):
    """The dynamic programme's split breaks what couples stages, and the ILP finds the best that does not."""
    solved = solve_problem(problem, NEVER, "highs")
    assert solved is not None
    assert solved.also == ()
    assert solved.solution.objective_ns == best_of_all(problem)
    assert keeps(problem, solved.solution.bounds)
    return solved.solution.bounds


def test_a_tied_pair_kept_on_one_rank_takes_the_ilp():
    layers = [layer(f"l{i}", [cost(time)], parameter_bytes=8) for i, time in enumerate((10, 10, 30, 10, 10, 10))]
    shared = (SharedParameter(name="tied", layers=(0, 3), bytes=8),)
    problem = problem_of(
        profile(layers, shared=shared),
        stages=2,
        micro_batches=4,
        kind=Kind(schedule="interleaved", virtual=2),
        wishes=Wishes(together=((0, 3),)),
    )
    bounds = only_the_ilp(problem)
    assert _stage(bounds, 0) % 2 == _stage(bounds, 3) % 2


def test_virtual_stages_that_share_a_ranks_memory_take_the_ilp():
    heavy = [100, 1, 100, 1, 1, 1]
    layers = [layer(f"l{i}", [cost(10)], parameter_bytes=size) for i, size in enumerate(heavy)]
    cluster = Cluster.uniform(2, memory_bytes=600)
    problem = problem_of(
        profile(layers), cluster=cluster, stages=2, micro_batches=2, kind=Kind(schedule="interleaved", virtual=2)
    )
    bounds = only_the_ilp(problem)
    assert _stage(bounds, 0) % 2 != _stage(bounds, 2) % 2


def test_a_block_kept_together_takes_the_ilp():
    layers = [layer(f"l{i}", [cost(time)]) for i, time in enumerate((10, 20, 30, 10, 20, 30))]
    problem = problem_of(
        profile(layers),
        stages=2,
        micro_batches=8,
        kind=Kind(schedule="interleaved", virtual=2),
        wishes=Wishes(together=((1, 2), (2, 3))),
    )
    bounds = only_the_ilp(problem)
    assert len({_stage(bounds, one) % 2 for one in (1, 2, 3)}) == 1


def test_recompute_makes_a_model_fit_and_is_chosen_where_it_costs_least():
    cheap = cost(10, saved_bytes=100, recompute_ns=2, saved_recompute_bytes=0)
    dear = cost(10, saved_bytes=100, recompute_ns=9, saved_recompute_bytes=0)
    found = profile([layer("cheap", [cheap]), layer("dear", [dear]), layer("last", [cost(10)])])
    cluster = Cluster.uniform(1, memory_bytes=150)
    made = make_plan(found, cluster, Request(batch_size=4, stages=1))
    assert made.stages[0].recompute == ("cheap",)
    assert made.step_ns == 4 * (90 + 2)
    with pytest.raises(InfeasibleError, match="--recompute auto"):
        make_plan(found, cluster, Request(batch_size=4, stages=1, recompute="none"))
    everything_again = make_plan(found, cluster, Request(batch_size=4, stages=1, recompute="all"))
    assert everything_again.stages[0].recompute == ("cheap", "dear")


def test_replicas_divide_the_batch_and_the_answer_says_that_a_pipeline_does_not_pay():
    made = make_plan(chain_profile([10] * 4), Cluster.uniform(4), Request(batch_size=8))
    assert (made.pipeline_size, made.data_parallel_size, made.batch_size, made.micro_batches) == (1, 4, 2, 2)
    assert "A pipeline does not pay here" in made.binding
    assert made.step_ns == 2 * 4 * 30


def test_sums_of_gradients_over_a_slow_link_speak_for_a_pipeline():
    cluster = Cluster.uniform(2, intra_node=Link(bytes_per_s=10**9))
    layers = [layer(f"l{i}", [cost(10)], parameter_bytes=1000) for i in range(4)]
    made = make_plan(profile(layers), cluster, Request(batch_size=8, virtual=1))
    assert (made.pipeline_size, made.data_parallel_size) == (2, 1)


def test_unequal_devices_are_put_in_the_order_that_suits_the_layers():
    """The one layer that needs a large memory is the last; the large device is the first of the cluster."""
    layers = [layer(f"l{i}", [cost(10)], parameter_bytes=1) for i in range(3)]
    layers.append(layer("vast", [cost(30)], parameter_bytes=100))
    cluster = Cluster(devices=(Device(memory_bytes=1000), Device(memory_bytes=100)))
    made = make_plan(profile(layers), cluster, Request(batch_size=8, replicas=1, virtual=1))
    assert made.device_order == (1, 0)
    assert [rank.memory_limit_bytes for rank in made.ranks] == [100, 1000]


def test_two_fast_and_two_slow_devices_with_one_slow_link_beat_the_plan_for_equal_ones():
    fast, slow = Device(speed=2.0), Device(speed=1.0, node=1)
    cluster = Cluster(devices=(fast, fast, slow, slow), intra_node=Link(latency_ns=5), inter_node=Link(latency_ns=60))
    found = chain_profile([100] * 12, crossing_bytes=10)
    asked = {"batch_size": 16, "replicas": 1, "virtual": 1, "schedule": "1f1b"}
    made = make_plan(found, cluster, Request(**asked))
    blind = make_plan(found, Cluster.uniform(4), Request(**asked))
    bounds = (0, *(stage.end for stage in blind.stages))
    problem = problem_of(found, cluster=cluster, stages=4, micro_batches=16)
    assert made.step_ns < 0.8 * score(problem, bounds).step_ns


def test_wishes_by_name_and_pattern_are_kept():
    names = ["embed", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp", "head"]
    found = profile([layer(name, [cost(10)]) for name in names])
    asked = {"batch_size": 8, "replicas": 1, "virtual": 1, "schedule": "1f1b"}
    pinned = make_plan(found, Cluster.uniform(2), Request(**asked, pins=("blocks.1.*=0",)))
    assert pinned.stages[0].layers[-1] == "blocks.1.mlp"
    whole = make_plan(found, Cluster.uniform(2), Request(**asked, together=("blocks.*",)))
    assert whole.stages[1].begin in (1, 3, 5)
    last = make_plan(found, Cluster.uniform(2), Request(**asked, forbidden_cuts=("blocks.*.mlp", "blocks.1.*")))
    assert last.stages[1].begin in (1, 5)
    with pytest.raises(InputError, match="no layer is called"):
        make_plan(found, Cluster.uniform(2), Request(**asked, pins=("tail=0",)))
    with pytest.raises(InfeasibleError, match="wishes"):
        make_plan(found, Cluster.uniform(2), Request(**asked, pins=("embed=1", "head=0")))
