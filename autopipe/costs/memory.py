"""The memory that any interval of layers needs as one stage."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from autopipe.costs.peak import working_peaks
from autopipe.costs.size import SizedProfile
from autopipe.costs.tables import Rectangles, Table, between, prefix
from autopipe.costs.time import IntervalTimes, entering, shared_pairs
from autopipe.documents.profile import ProfiledLayer, ProfiledValue
from autopipe.schedules.comms import SEND_SLACK
from autopipe.schedules.residency import StageHolding


@dataclass(frozen=True, kw_only=True)
class IntervalMemory:
    """Tables of shape (L + 1, L + 1), in bytes: entry [begin, end] speaks of layers begin to end - 1 as one stage.

    Attributes
    ----------
    parameters : Table
        Each parameter once.
    state : Table
        Parameters, gradients, optimizer state and buffers.
    saved : Table
        What one micro-batch in flight holds: what layers save, values inside that a later layer saves, and
        everything received, whose buffers live until the backward.
    peak : Table
        The most that the micro-batch in hand holds, ``saved`` included.
    forward_peak : Table
        The same while its forward runs only.
    near_input_gradients, far_input_gradients : Table
        Gradients of what enters: those that surely go to the stage before, and the rest.
    near_outputs, far_outputs : Table
        What leaves, and no layer saves anyway: that is surely waited for as soon as the next stage has answered,
        and the rest, once for each later reader.
    output_gradients : Table
        Gradients of what leaves, once for each later reader.
    """

    parameters: Table
    state: Table
    saved: Table
    peak: Table
    forward_peak: Table
    near_input_gradients: Table
    far_input_gradients: Table
    near_outputs: Table
    far_outputs: Table
    output_gradients: Table


def interval_memory(sized: SizedProfile, times: IntervalTimes) -> IntervalMemory:
    """Return the memory of every interval at one micro-batch size.

    Notes
    -----
    Time and memory are O(L^2), and O(L) more for every layer that a value passes over.
    """
    parameters, state = _held(sized, sized.profile.layers)
    kept = between(prefix(cost.saved_bytes for cost in sized.costs)) + _kept_for_later_layers(sized)
    peak, forward_peak = working_peaks(sized, kept)
    kept[:, -1] += sized.loss.saved_bytes
    near_inputs = _near_input_gradients(sized)
    near_outputs = _near_outputs(sized)
    values, layers = sized.profile.values, len(sized.costs)
    inputs = entering(zip(values, sized.value_bytes, strict=True), layers)
    trained = ((value, size) for value, size in zip(values, sized.value_bytes, strict=True) if value.requires_grad)
    return IntervalMemory(
        parameters=parameters,
        state=state,
        saved=kept + inputs,
        peak=peak + inputs,
        forward_peak=forward_peak + inputs,
        near_input_gradients=near_inputs,
        far_input_gradients=times.input_gradient_bytes - near_inputs,
        near_outputs=near_outputs,
        far_outputs=_once_for_each_reader(zip(values, sized.unsaved_bytes, strict=True), layers) - near_outputs,
        output_gradients=_once_for_each_reader(trained, layers),
    )


def holding_bytes(
    memory: IntervalMemory, times: IntervalTimes, held: StageHolding, *, stage: int, stages: int, micro_batches: int
) -> Table:
    """Return what each interval as ``stage`` holds at one moment, beside its state and the micro-batch in hand."""
    unsent_far, unsent_far_gradients = far_counts(held, stage=stage, stages=stages, micro_batches=micro_batches)
    return (
        held.in_flight * memory.saved
        + held.inputs * times.input_bytes
        + held.gradients * memory.output_gradients
        + held.outputs * memory.near_outputs
        + unsent_far * memory.far_outputs
        + held.input_gradients * memory.near_input_gradients
        + unsent_far_gradients * memory.far_input_gradients
    )


def far_counts(held: StageHolding, *, stage: int, stages: int, micro_batches: int) -> tuple[int, int]:
    """Return how many messages over stages, and gradients of such, may not have left ``stage`` at most."""
    outputs = max(SEND_SLACK + max(1, stages - 1 - stage), held.unanswered)
    return min(micro_batches, outputs), min(micro_batches, SEND_SLACK + max(1, stage))


def _held(sized: SizedProfile, layers: tuple[ProfiledLayer, ...]) -> tuple[Table, Table]:
    """Return the bytes of parameters, and of all state, with shared parameters counted once."""
    parameters = between(prefix(layer.parameter_bytes for layer in layers))
    state = between(
        prefix(
            layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes + layer.buffer_bytes
            for layer in layers
        )
    )
    for pair in shared_pairs(sized.profile.shared):
        layer = layers[pair.second]
        twice = pair.bytes
        if layer.gradient_bytes >= pair.bytes > 0:
            twice += pair.bytes + layer.optimizer_bytes * pair.bytes // layer.gradient_bytes
        parameters[: pair.first + 1, pair.second + 1 :] -= pair.bytes
        state[: pair.first + 1, pair.second + 1 :] -= twice
    return parameters, state


def _kept_for_later_layers(sized: SizedProfile) -> Table:
    """Return the bytes of values made inside each interval that a later layer inside it keeps."""
    rectangles = Rectangles(len(sized.costs))
    for value, size, kept in zip(sized.profile.values, sized.storage_bytes, sized.kept_from, strict=True):
        if kept is not None and kept > value.producer:
            rectangles.add((0, value.producer), (kept + 1, len(sized.costs)), size)
    return rectangles.table()


def _near_input_gradients(sized: SizedProfile) -> Table:
    """Return the gradients of what enters each interval from the layer right before it."""
    layers = len(sized.costs)
    near = np.zeros((layers + 1, layers + 1), dtype=np.int64)
    for value, size in zip(sized.profile.values, sized.value_bytes, strict=True):
        if value.requires_grad and value.consumers:
            near[value.producer + 1, value.consumers[0] + 1 :] += size
    return near


def _near_outputs(sized: SizedProfile) -> Table:
    """Return what leaves each interval for the layer right after it at the latest, if a gradient answers it."""
    layers = len(sized.costs)
    near = np.zeros((layers + 1, layers + 1), dtype=np.int64)
    answered = np.zeros((layers + 1, layers + 1), dtype=bool)
    for value, size in zip(sized.profile.values, sized.unsaved_bytes, strict=True):
        if value.consumers:
            near[: value.producer + 1, value.consumers[-1]] += size
        for consumer in value.consumers if value.requires_grad else ():
            answered[: value.producer + 1, consumer] = True
    return np.where(answered, near, 0)


def _once_for_each_reader(values: Iterable[tuple[ProfiledValue, int]], layers: int) -> Table:
    """Return the bytes of what leaves each interval, once for each later reader."""
    table = Rectangles(layers)
    for value, size in values:
        for consumer in value.consumers:
            table.add((0, value.producer), (value.producer + 1, consumer), size)
    return table.table()
