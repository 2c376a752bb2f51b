import pytest
import torch
from torch import nn

from autopipe.errors import InputError
from autopipe.profiler.optimizer import OptimizerMeter, parse_optimizer
from autopipe.profiler.timer import choose_clock

CPU = torch.device("cpu")


def meter(text: str) -> OptimizerMeter:
    return OptimizerMeter(text, CPU, choose_clock(CPU))


@pytest.mark.parametrize(
    ("text", "state_bytes"),
    [
        ("sgd", 0),
        ("SGD:momentum=0.9", 4 * 600),
        ("adamw", 2 * 4 * 600 + 2 * 4),
        ("adam:amsgrad=True", 3 * 4 * 600 + 2 * 4),
    ],
)
def test_state_is_counted_as_the_optimizer_makes_it(text: str, state_bytes: int) -> None:
    parameters = [nn.Parameter(torch.zeros(20, 25)), nn.Parameter(torch.zeros(100))]
    assert meter(text).measure(parameters).state_bytes == state_bytes


def test_state_has_the_dtype_of_the_parameter() -> None:
    assert meter("sgd:momentum=0.9").measure([nn.Parameter(torch.zeros(100, dtype=torch.bfloat16))]).state_bytes == 200


def test_the_given_parameters_are_left_alone() -> None:
    parameter = nn.Parameter(torch.ones(10))
    cost = meter("adamw:lr=0.5").measure([parameter])
    assert parameter.grad is None
    assert torch.equal(parameter, torch.ones(10))
    assert cost.step_ns is not None
    assert cost.step_ns >= 0


def test_no_parameters_cost_nothing() -> None:
    cost = meter("adamw").measure([])
    assert (cost.state_bytes, cost.step_ns) == (0, 0)


def test_equal_parameters_are_measured_once() -> None:
    one = meter("adamw")
    first = one.measure([nn.Parameter(torch.zeros(10))])
    assert one.measure([nn.Parameter(torch.ones(10))]) is first


def test_options_reach_the_optimizer() -> None:
    made = parse_optimizer("sgd: lr=0.25, nesterov=True, momentum=0.5")([nn.Parameter(torch.zeros(1))])
    assert made.defaults["lr"] == 0.25
    assert made.defaults["nesterov"] is True


def test_an_unknown_optimizer_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InputError, match=r"no optimizer 'adamx'.*adamw.*sgd"):
        parse_optimizer("adamx")


@pytest.mark.parametrize("text", ["sgd:momentum", "sgd:momentum=", "sgd:momentum=abc"])
def test_an_option_that_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="name=value"):
        parse_optimizer(text)


@pytest.mark.parametrize("text", ["lbfgs", "sgd:speed=3", "sparseadam"])
def test_an_optimizer_that_cannot_step_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot update parameters"):
        meter(text).measure([nn.Parameter(torch.zeros(3))])
