import torch

from autopipe.executor.entry import Entry


def test_a_stage_may_begin_with_an_in_place_operation() -> None:
    buffer = torch.tensor([-1.0, 2.0])
    entry = Entry()
    (x,) = entry.admit([buffer])
    torch.relu_(x).sum().backward()
    assert entry.gradients[0].tolist() == [0.0, 1.0]
    assert buffer.tolist() == [0.0, 2.0]


def test_an_input_that_is_not_used_has_no_gradient() -> None:
    entry = Entry()
    used, _ = entry.admit([torch.ones(2), torch.ones(2)])
    (used * 3).sum().backward()
    assert entry.gradients[0].tolist() == [3.0, 3.0]
    assert entry.gradients[1] is None


def test_gradients_of_several_uses_are_added() -> None:
    entry = Entry()
    (x,) = entry.admit([torch.ones(2)])
    (x * 2 + x * 5).sum().backward()
    assert entry.gradients[0].tolist() == [7.0, 7.0]


def test_admitted_tensors_share_the_buffers_memory() -> None:
    buffer = torch.ones(3, 4).t()
    (x,) = Entry().admit([buffer])
    assert x.data_ptr() == buffer.data_ptr()
    assert x.stride() == buffer.stride()
