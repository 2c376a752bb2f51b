"""Ranks read their own loaders, and all of them see the end at the same step."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from autopipe.errors import StepError
from autopipe.transport.endpoint import Endpoint

_END = object()


Watching = Callable[[str], contextlib.AbstractContextManager[None]]


def until_first_end(loader: Iterable[Any] | None, endpoint: Endpoint, watching: Watching) -> Iterator[Any]:
    """Yield batches until any rank's loader has no more; all ranks iterate together.

    A rank without a loader, which needs none as it reads neither inputs nor targets, is given None each time.
    ``watching`` is what its waits are under.

    Raises
    ------
    StepError
        If another rank's loader failed; the rank whose it is raises what the loader raised.
    """
    iterator = None if loader is None else iter(loader)
    while True:
        batch, failure = None, None
        try:
            batch = None if iterator is None else next(iterator, _END)
        except Exception as error:
            failure = error
        marks = torch.tensor([float(batch is _END), float(failure is not None), float(iterator is not None)])
        with watching("the other ranks' loaders"):
            ended, failed, read = endpoint.open_sum(3).finish(marks.double()).tolist()
        if failure is not None:
            raise failure
        if failed:
            raise StepError("the loader of another rank failed: the error is in that rank's output.")
        if ended or not read:
            return
        yield batch
