"""The proof tells equal from close and close from different, and knows which sums a pipeline reorders."""

import torch
from torch import Tensor

from autopipe.cli.demo.proof import train_plain
from autopipe.cli.equality import Sum, compare_gradients, reordered_sums
from autopipe.documents.graph import Graph, Layer, Value
from tests.reporting import samples


def gradients(**changes: float) -> dict[str, Tensor]:
    return {name: torch.tensor([1.0]) * (1 + changes.get(name, 0.0)) for name in ("a", "b")}


def test_equal_gradients_are_equal_bit_for_bit() -> None:
    assert compare_gradients(gradients(), gradients(), frozenset()) == (("a", "b"), (), ())


def test_one_bit_makes_a_gradient_different_unless_it_is_exempt() -> None:
    slightly = gradients(b=3e-7)
    assert not torch.equal(slightly["b"], gradients()["b"])
    assert compare_gradients(gradients(), slightly, frozenset()) == (("a",), (), ("b",))
    assert compare_gradients(gradients(), slightly, frozenset({"b"})) == (("a",), ("b",), ())


def test_an_exempt_gradient_must_still_be_close() -> None:
    assert compare_gradients(gradients(), gradients(b=1e-3), frozenset({"b"})).different == ("b",)


def test_a_gradient_that_only_one_side_has_is_different() -> None:
    only_a = {"a": torch.ones(1)}
    assert compare_gradients(gradients(), only_a, frozenset({"b"})).different == ("b",)
    assert compare_gradients(only_a, gradients(), frozenset()).different == ("b",)


def graph(values: tuple[Value, ...] = (), head_reads: str = "head.weight") -> Graph:
    """Five layers; the sample plan's first stage holds the first three."""
    names = ("tokens", "blocks.0", "blocks.1", "blocks.2", "head")
    parameters = [f"{name}.weight" for name in names[:-1]] + [head_reads]
    layers = tuple(
        Layer(name=name, kind="Linear", nodes=(), parameters=(parameter,))
        for name, parameter in zip(names, parameters, strict=True)
    )
    return Graph(model="GPT", nodes=(), parameters=(), layers=layers, values=values)


def test_a_chain_has_nothing_exempt() -> None:
    chain = tuple(Value(name=f"v{i}", producer=i, consumers=(i + 1,), requires_grad=True) for i in range(4))
    assert reordered_sums(samples.plan(), graph(chain)) == ()


def test_a_weight_tied_over_ranks_is_exempt_and_one_tied_within_a_rank_is_not() -> None:
    tied = Sum(name="tokens.weight", stages=(0, 1), gradients=("tokens.weight",))
    assert reordered_sums(samples.plan(), graph(head_reads="tokens.weight")) == (tied,)
    assert reordered_sums(samples.plan(), graph(head_reads="blocks.2.weight")) == ()


def test_all_before_a_tensor_that_two_stages_read_is_exempt() -> None:
    skip = Value(name="skip", producer=1, consumers=(2, 4), requires_grad=True)
    reordered = Sum(name="skip", stages=(0, 1), gradients=("tokens.weight", "blocks.0.weight"))
    assert reordered_sums(samples.plan(), graph((skip,))) == (reordered,)
    mask = Value(name="mask", producer=1, consumers=(2, 4), requires_grad=False)
    assert reordered_sums(samples.plan(), graph((mask,))) == ()


def test_the_plain_run_is_the_same_twice_and_learns() -> None:
    first = train_plain(3, batch=4, micro_batch=2)
    again = train_plain(3, batch=4, micro_batch=2)
    assert first.losses == again.losses
    assert first.losses[2] < first.losses[0]
    assert sorted(first.gradients) == [0, 2]
    for step, expected in first.gradients.items():
        assert not compare_gradients(expected, again.gradients[step], frozenset()).different
