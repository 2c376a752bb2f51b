"""The demo's model: a few million parameters, a heavy head, weights from a seed."""

import torch

from autopipe.cli.demo.model import CONTEXT, build, next_byte_loss


def test_a_few_million_parameters_of_which_the_head_has_more_than_a_block() -> None:
    model = build()
    total = sum(parameter.numel() for parameter in model.parameters())
    head = sum(p.numel() for module in (model.head_up, model.head_down) for p in module.parameters())
    block = sum(parameter.numel() for parameter in model.blocks[0].parameters())
    assert 3e6 < total < 6e6
    assert head > 1.2 * block


def test_equal_seeds_give_equal_weights_and_leave_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = build(1), build(1), build(2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.bytes.weight, second.bytes.weight)
    assert not torch.equal(first.bytes.weight, other.bytes.weight)


def test_a_prediction_never_looks_ahead() -> None:
    model, ids = build(), torch.zeros(1, CONTEXT, dtype=torch.long)
    changed = ids.clone()
    changed[0, -1] = 7
    with torch.no_grad():
        assert torch.equal(model(ids)[0, :-1], model(changed)[0, :-1])


def test_an_untrained_model_guesses_among_256_bytes() -> None:
    ids = torch.randint(256, (4, CONTEXT))
    assert 5.2 < next_byte_loss(build()(ids), ids) < 6.2
