"""A profile is read off at one micro-batch size: as measured there, interpolated between, never below."""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from autopipe.documents.profile import Cost, Profile, ProfiledValue, Source
from autopipe.errors import InputError


class SizedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What every layer, the loss and every crossing value cost at one micro-batch size.

    Attributes
    ----------
    micro_batch_size : int
        In samples.
    costs : tuple of Cost
        By layer.
    loss : Cost
    value_bytes, storage_bytes, waiting_gradient_bytes : tuple of int
        Of every crossing value, of what it keeps alive where it was made, and of what its gradient keeps alive
        while other layers run between its readers and its producer; aligned with the profile's values.
    kept_from : tuple of int or None
        By value, the first layer that keeps its storage until its own backward, None where none does.
    recompute : frozenset of int
        The layers that recompute; costs and ``kept_from`` are what they are then.
    profile : Profile
        Where it was read off, for what does not depend on the size.
    """

    micro_batch_size: int
    costs: tuple[Cost, ...]
    loss: Cost
    value_bytes: tuple[int, ...]
    storage_bytes: tuple[int, ...]
    waiting_gradient_bytes: tuple[int, ...]
    kept_from: tuple[int | None, ...]
    profile: Profile
    recompute: frozenset[int] = frozenset()

    @property
    def unsaved_bytes(self) -> tuple[int, ...]:
        """By value, what a message with it holds until it has left: nothing more where its producer saves it."""
        places = zip(self.profile.values, self.sent_bytes, self.kept_from, strict=True)
        return tuple(0 if kept == value.producer else size for value, size, kept in places)

    @property
    def sent_bytes(self) -> tuple[int, ...]:
        """By value, what travels to each stage that reads it: nothing where stages make it again."""
        places = zip(self.profile.values, self.value_bytes, strict=True)
        return tuple(0 if value.is_rebuilt else size for value, size in places)


def at_size(profile: Profile, micro_batch_size: int) -> SizedProfile:
    """Return the costs of ``profile`` at ``micro_batch_size`` samples.

    Between two profiled sizes every figure lies on the line between them. Above the largest it lies on the
    line through the two largest, and never under the value of the largest: memory is affine in the size and
    time nearly so once a device is full. Such costs are marked as interpolated.

    Raises
    ------
    InputError
        Below the smallest profiled size, where fixed costs dominate that no line through larger sizes
        shows; and off the only size of a profile that has one.
    """
    sizes = profile.micro_batches
    if micro_batch_size in sizes:
        index = sizes.index(micro_batch_size)
        return SizedProfile(
            micro_batch_size=micro_batch_size,
            costs=tuple(layer.costs[index] for layer in profile.layers),
            loss=profile.loss[index],
            value_bytes=tuple(value.bytes[index] for value in profile.values),
            storage_bytes=tuple(_storage(value)[index] for value in profile.values),
            waiting_gradient_bytes=tuple(_waiting(value)[index] for value in profile.values),
            kept_from=_kept_from(profile),
            profile=profile,
        )
    if micro_batch_size < sizes[0] or len(sizes) == 1:
        raise InputError(
            f"the profile has no costs for micro-batches of {micro_batch_size} samples: it was taken at "
            f"{', '.join(map(str, sizes))}, and costs are read off between profiled sizes and above two of them only. "
            f"Profile again with --micro-batch {','.join(map(str, sorted({*sizes, max(1, micro_batch_size)})))}."
        )
    line = _Line(sizes, micro_batch_size)
    return SizedProfile(
        micro_batch_size=micro_batch_size,
        costs=tuple(_cost(line, layer.costs) for layer in profile.layers),
        loss=_cost(line, profile.loss),
        value_bytes=tuple(line.at(value.bytes) for value in profile.values),
        storage_bytes=tuple(line.at(_storage(value)) for value in profile.values),
        waiting_gradient_bytes=tuple(line.at(_waiting(value)) for value in profile.values),
        kept_from=_kept_from(profile),
        profile=profile,
    )


class _Line:
    """The line through two neighbouring profiled sizes, read at another size."""

    def __init__(self, sizes: tuple[int, ...], size: int) -> None:
        self.high = min(bisect_left(sizes, size), len(sizes) - 1)
        self.low = self.high - 1
        self._step = size - sizes[self.low]
        self._span = sizes[self.high] - sizes[self.low]

    def at(self, figures: Sequence[int]) -> int:
        """Return the figure at the size, rounded to nearest, given those at the profiled sizes."""
        low, high = figures[self.low], figures[self.high]
        value = low + (2 * (high - low) * self._step + self._span) // (2 * self._span)
        return value if self._step <= self._span else max(value, high)

    def at_if_known(self, figures: Sequence[int | None]) -> int | None:
        """Return the figure at the size, None where either end was not measured."""
        low, high = figures[self.low], figures[self.high]
        if low is None or high is None:
            return None
        known = [0] * len(figures)
        known[self.low], known[self.high] = low, high
        return self.at(known)


def _source(costs: tuple[Cost, ...]) -> Source:
    """Return where a figure between others comes from: interpolated, but estimates stay estimates."""
    estimated = [cost.source for cost in costs if cost.source in (Source.ROOFLINE, Source.CALIBRATED)]
    return estimated[0] if estimated else Source.INTERPOLATED


def _cost(line: _Line, costs: tuple[Cost, ...]) -> Cost:
    return Cost(
        forward_ns=line.at([cost.forward_ns for cost in costs]),
        backward_ns=line.at([cost.backward_ns for cost in costs]),
        input_grad_ns=line.at_if_known([cost.input_grad_ns for cost in costs]),
        weight_grad_ns=line.at_if_known([cost.weight_grad_ns for cost in costs]),
        recompute_ns=line.at_if_known([cost.recompute_ns for cost in costs]),
        saved_bytes=line.at([cost.saved_bytes for cost in costs]),
        saved_recompute_bytes=line.at_if_known([cost.saved_recompute_bytes for cost in costs]),
        transient_bytes=line.at([cost.transient_bytes for cost in costs]),
        transient_recompute_bytes=line.at_if_known([cost.transient_recompute_bytes for cost in costs]),
        ending_transient_bytes=line.at_if_known([cost.ending_transient_bytes for cost in costs]),
        ending_transient_recompute_bytes=line.at_if_known([cost.ending_transient_recompute_bytes for cost in costs]),
        forward_transient_bytes=line.at([cost.forward_transient_bytes for cost in costs]),
        forward_transient_recompute_bytes=line.at_if_known([cost.forward_transient_recompute_bytes for cost in costs]),
        source=_source(costs),
    )


def _kept_from(profile: Profile) -> tuple[int | None, ...]:
    return tuple(value.producer if value.producer_saves else value.saved_at for value in profile.values)


def _storage(value: ProfiledValue) -> tuple[int, ...]:
    return value.storage_bytes or value.bytes


def _waiting(value: ProfiledValue) -> tuple[int, ...]:
    """Return what the gradient of ``value`` keeps alive; as much as the value where that was not measured."""
    return value.gradient_bytes or (value.bytes if value.requires_grad else (0,) * len(value.bytes))
