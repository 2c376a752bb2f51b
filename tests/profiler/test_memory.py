import pytest
import torch
from torch import nn
from torch.nn import functional

from autopipe.errors import ProfileError
from autopipe.profiler.memory import StorageLedger, storages, tensor_bytes


def test_a_storage_counts_once_however_many_views_it_has() -> None:
    with StorageLedger() as ledger:
        whole = torch.zeros(10)
        parts = [whole.view(2, 5), whole[:3], whole.expand(4, 10)]
        assert ledger.current_bytes == 40
        del whole
        assert ledger.current_bytes == 40
        del parts
        assert ledger.current_bytes == 0
    assert ledger.peak_bytes == 40


def test_what_existed_before_never_counts() -> None:
    before = torch.zeros(10)
    with StorageLedger() as ledger:
        before.add_(1)
        view = before.view(2, 5)
        view.mul_(2)
    assert ledger.peak_bytes == 0


def test_peak_begins_anew_when_it_is_reset() -> None:
    with StorageLedger() as ledger:
        kept = torch.zeros(1)
        torch.zeros(100)
        assert ledger.peak_bytes == 404
        ledger.reset_peak()
        torch.zeros(10)
        assert ledger.peak_bytes == 44
    del kept


def test_what_is_held_counts_on_in_a_peak_of_its_own() -> None:
    with StorageLedger() as ledger:
        held = torch.ones(8)
        ledger.reset_peak(holding={"gradient": held})
        del held
        made = torch.ones(6)
        assert (ledger.peak_bytes, ledger.held_peak_bytes) == (4 * 8, 4 * (8 + 6))
        del made


def test_storages_are_booked_to_their_maker_and_their_savers() -> None:
    weight = torch.ones(4, requires_grad=True)
    with StorageLedger() as ledger:
        ledger.owner = 1
        made = weight * 2
        ledger.owner = 2
        squared = made * made
        ledger.owner = 3
        result = squared.exp() * made
        entries = sorted((entry.maker, sorted(entry.savers)) for entry in ledger.living.values())
    # ``made`` is saved by the multiplications of 2 and 3, ``squared`` by nobody, exp's result by exp and by a product.
    assert entries == [(1, [2, 3]), (2, []), (3, []), (3, [3])]
    del made, squared, result


def test_an_operation_that_saves_its_result_does_not_live_for_ever() -> None:
    with StorageLedger() as ledger:
        result = functional.relu(torch.ones(4, requires_grad=True) * 2)
        del result
        assert ledger.current_bytes == 0


def test_the_backward_pass_is_seen() -> None:
    layer = nn.Linear(8, 8)
    inputs = torch.randn(3, 8)
    with StorageLedger() as ledger:
        loss = layer(inputs).sum()
        forward = ledger.current_bytes
        ledger.reset_peak()
        loss.backward()
        assert ledger.peak_bytes >= forward + 4 * 8 * 8
        del loss
    assert ledger.current_bytes == 4 * (8 * 8 + 8)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_count_their_indices_and_values() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,))
    assert sum(storage.nbytes() for storage in storages(sparse)) == 2 * 8 + 2 * 4


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_layout_that_cannot_be_counted_is_refused_by_name() -> None:
    with pytest.raises(ProfileError, match="sparse_csr"):
        list(storages(torch.eye(3).to_sparse_csr()))


def test_an_expanded_tensor_is_sent_element_by_element() -> None:
    assert tensor_bytes(torch.zeros(1, dtype=torch.float16).expand(5)) == 10
    assert tensor_bytes("no tensor") == 0
