from collections.abc import Sequence

from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster
from autopipe.planner.refine import limiting_layer, refined
from tests.planner.instances import plan
from tests.profiles import cost, layer, profile


def planned(document: Profile) -> Plan:
    return plan(document, Cluster.uniform(2), batch_size=8, micro_batch_size=1, schedule="1f1b")


def measured(times: dict[str, int]) -> Profile:
    return profile([layer(name, [cost(time)]) for name, time in times.items()])


def test_a_layer_that_is_slower_than_all_others_together_limits() -> None:
    assert limiting_layer(planned(measured({"a": 10, "b": 10, "c": 100}))) == "c"
    assert limiting_layer(planned(measured({"a": 10, "b": 10, "c": 21}))) is None


def test_limiting_layers_are_opened_until_none_limits() -> None:
    asked: list[tuple[str, ...]] = []

    def measure(opened: Sequence[str]) -> Profile:
        asked.append(tuple(opened))
        times = {"a": 10, "b": 10, "c": 130}
        if "c" in opened:
            times = {"a": 10, "b": 10, "c.0": 30, "c.1": 100}
        if "c.1" in opened:
            times = {"a": 10, "b": 10, "c.0": 30, "c.1.0": 20, "c.1.1": 80}
        return measured(times)

    best = refined(measure, planned)
    assert asked == [(), ("c",), ("c", "c.1")]
    assert best.step_ns < planned(measure(("c",))).step_ns < planned(measure(())).step_ns


def test_a_layer_that_does_not_open_is_left_as_it_is() -> None:
    profiles = [measured({"a": 10, "c": 100})] * 2
    best = refined(lambda opened: profiles.pop(), planned)
    assert limiting_layer(best) == "c"
    assert profiles == []
