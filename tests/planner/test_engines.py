"""Where an engine fails, the next one answers; all of them give the same answer."""

import warnings
from typing import Any

import pulp
import pytest
import scipy.optimize

from autopipe.errors import InputError
from autopipe.planner import engines
from autopipe.planner.engine import ENGINES, EngineError


def knapsack(*, least: int = 11) -> pulp.LpProblem:
    """Pay as little as it takes to carry ``least``: the items of 7 and 5, at 9 + 7, and a constant of 2."""
    model = pulp.LpProblem("knapsack", pulp.LpMinimize)
    prices, weights = (4, 9, 8, 7), (4, 7, 6, 5)
    taken = [model.add_variable(f"x_{at}", cat="Binary") for at in range(4)]
    model += pulp.lpSum(price * x for price, x in zip(prices, taken, strict=True)) + 2
    model += pulp.lpSum(weight * x for weight, x in zip(weights, taken, strict=True)) >= least, "C1"
    model += taken[0] + taken[1] <= 2, "C2"
    model += taken[2] + taken[3] == 1, "C3"
    return model


def dies(*_: Any, **__: Any) -> None:
    raise MemoryError("planted")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_finds_and_proves_the_best(engine):
    model = knapsack()
    answer = engines.run(model, engine=engine, time_limit_s=20)
    assert answer is not None
    assert (answer.engine, answer.optimal) == (engine, True)
    assert pulp.value(model.objective) == pytest.approx(18)
    assert answer.bound == pytest.approx(18)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_programme_without_solution_is_no_failure(engine):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engines.run(knapsack(least=99), engine=engine, time_limit_s=20) is None


def test_the_next_engine_stands_in_for_one_that_dies_and_says_so(monkeypatch):
    monkeypatch.setattr(pulp.HiGHS, "callSolver", dies)
    with pytest.warns(RuntimeWarning, match=r"highs failed \(MemoryError: planted\)"):
        answer = engines.run(knapsack(), engine="highs", time_limit_s=20)
    assert answer is not None
    assert answer.engine == "scipy"


def test_the_next_engine_stands_in_for_one_that_is_not_there(monkeypatch):
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("No module named 'highspy'")

    monkeypatch.setattr(pulp.HiGHS, "createAndConfigureSolver", missing)
    with pytest.warns(RuntimeWarning, match="No module named 'highspy'"):
        answer = engines.run(knapsack(), engine="highs", time_limit_s=20)
    assert answer is not None
    assert (answer.engine, answer.optimal) == ("scipy", True)


def test_the_last_engine_stands_in_for_two(monkeypatch):
    monkeypatch.setattr(pulp.HiGHS, "callSolver", dies)
    monkeypatch.setattr(scipy.optimize, "milp", dies)
    with pytest.warns(RuntimeWarning, match="scipy failed"):
        answer = engines.run(knapsack(), engine="highs", time_limit_s=20)
    assert answer is not None
    assert (answer.engine, answer.optimal) == ("cbc", True)


def test_all_failures_are_told_where_no_engine_is_left(monkeypatch):
    monkeypatch.setattr(pulp.HiGHS, "callSolver", dies)
    monkeypatch.setattr(scipy.optimize, "milp", dies)
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "actualSolve", dies)
    with pytest.warns(RuntimeWarning), pytest.raises(EngineError, match=r"scipy failed.*highs failed.*cbc failed"):
        engines.run(knapsack(), engine="scipy", time_limit_s=20)


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="highs, scipy, cbc"):
        engines.run(knapsack(), engine="abacus", time_limit_s=1)
