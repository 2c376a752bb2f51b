"""A sampler gives each replica its part of every mini-batch, the last short one included."""

from collections.abc import Iterator, Sequence

import torch

from autopipe.documents.arguments import typed
from autopipe.errors import InputError

_LARGEST = 1 << 62
_LARGEST_SET = 1 << 40
_MOST_REPLICAS = 1 << 20


def replica_sizes(samples: int, replicas: int) -> tuple[int, ...]:
    """Return the samples of each replica: as equal as can be, larger ones first; 0 where there are too few."""
    return tuple(samples // replicas + (k < samples % replicas) for k in range(replicas))


class ReplicaSampler:
    """Yields, for each mini-batch of a data set, the indices of one replica's samples.

    It is the ``batch_sampler`` of a `torch.utils.data.DataLoader`. All replicas yield equally often, and no sample
    comes twice in an epoch. Of the last, short mini-batch each replica gets its part, larger parts first;
    `Pipeline.step` weighs every sample equally all the same. If it has fewer samples than there are replicas it
    is left out, because a loader can make no batch of no samples.

    Parameters
    ----------
    samples : int
        The length of the data set.
    batch_size : int
        The mini-batch of all replicas together.
    replica, replicas : int
        `Pipeline.replica`, and how many there are.
    shuffle : bool
        Draw a new order each epoch, the same on all replicas.
    seed : int
        From which, with the epoch, the order is drawn.
    drop_last : bool
        Leave the last mini-batch out if it is short.

    Raises
    ------
    InputError
        If there is no such replica, or a number is out of range.
    """

    @typed
    def __init__(
        self,
        samples: int,
        batch_size: int,
        *,
        replica: int,
        replicas: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if not 0 <= samples <= _LARGEST_SET or batch_size < 1 or not 0 <= replica < replicas <= _MOST_REPLICAS:
            raise InputError(
                f"{samples} samples in batches of {batch_size} have no replica {replica} of {replicas}: give 0 to "
                "2**40 samples, a batch of at least 1, and a replica from 0 of at most 2**20."
            )
        _check_seed(seed)
        self.samples, self.batch_size = samples, batch_size
        self.replica, self.replicas = replica, replicas
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0

    @typed
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration has."""
        _check_seed(epoch)
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + (rest >= self.replicas and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        order: Sequence[int] = range(self.samples)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.samples, generator=generator).tolist()
        for number in range(len(self)):
            batch = order[number * self.batch_size : (number + 1) * self.batch_size]
            sizes = replica_sizes(len(batch), self.replicas)
            begin = sum(sizes[: self.replica])
            yield list(batch[begin : begin + sizes[self.replica]])


def _check_seed(number: int) -> None:
    if abs(number) > _LARGEST:
        raise InputError(f"{number} is too large to draw from: give a seed and an epoch of at most 2**62.")
