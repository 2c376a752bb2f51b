"""A failure of the user's model while it is measured becomes a sentence that says where and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from autopipe.errors import AutopipeError, ProfileError
from autopipe.profiler.layers import Chain
from autopipe.recorder.exhaustion import is_out_of_memory


@contextmanager
def explained(chain: Chain | None, size: int) -> Iterator[None]:
    """Turn what the model raises inside into an error of ours.

    Parameters
    ----------
    chain : Chain, optional
        Knows which segment runs; None where the model is run in another way.
    size : int
        Samples in the micro-batch.

    Raises
    ------
    ProfileError
        If anything but one of our own errors or an interrupt was raised.
    """
    try:
        yield
    except AutopipeError:
        raise
    except Exception as error:
        where = _place(chain)
        if is_out_of_memory(error):
            raise ProfileError(
                f"memory ran out{where} at micro-batch size {size}, so nothing can be planned for that size. "
                f"Measure smaller ones, for example micro_batches=({max(1, size // 2)},)."
            ) from error
        raise ProfileError(
            f"the model raised {type(error).__name__}{where} at micro-batch size {size}: {error}. "
            "It must run on its example and on batches of every size that is measured: check example and target, "
            "or name the sizes that work with micro_batches=."
        ) from error


def _place(chain: Chain | None) -> str:
    if chain is None:
        return ""
    sweep, index = chain.position
    what = f"layer {chain.pieces[index].name}" if index < len(chain.pieces) else "the loss"
    return f" in the {sweep} of {what}"
