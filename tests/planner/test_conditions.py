"""What a message costs its ranks is part of a plan's step, and the plan holds it."""

import msgspec
import pytest

from autopipe.documents.conditions import Conditions
from autopipe.documents.files import decode, encode
from autopipe.documents.plan import Plan
from autopipe.errors import DocumentError
from autopipe.hardware.cluster import Cluster, Device
from autopipe.planner import Request, plan, simulate_plan
from tests.profiles import chain_profile

CLUSTER = Cluster(devices=(Device(), Device()))


def test_conditions_of_the_profile_are_in_the_plan_and_in_its_step():
    profile = chain_profile([10_000, 10_000, 10_000, 10_000])
    request = Request(batch_size=4, stages=2, schedule="1f1b")
    ideal = plan(profile, CLUSTER, request)
    costly = plan(msgspec.structs.replace(profile, conditions=Conditions(action_ns=500)), CLUSTER, request)
    assert ideal.conditions is None
    assert costly.conditions == Conditions(action_ns=500)
    assert costly.step_ns > ideal.step_ns
    again = decode(encode(costly), Plan, origin="the plan")
    assert simulate_plan(again).step_ns == costly.step_ns


def test_impossible_conditions_are_refused():
    made = plan(chain_profile([10_000, 10_000]), CLUSTER, Request(batch_size=2, stages=2))
    wrong = encode(msgspec.structs.replace(made, conditions=Conditions(message_ns=-1)))
    with pytest.raises(DocumentError, match=r"conditions\.message_ns is -1, below 0"):
        decode(wrong, Plan, origin="the plan")
