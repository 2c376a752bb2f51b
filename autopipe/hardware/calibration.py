"""A measured profile corrects the roofline: how much longer each kind of operator takes than thought."""

from collections.abc import Iterator

import msgspec

from autopipe.documents.profile import Profile, Source
from autopipe.documents.work import OperatorKind, Sweep, Work
from autopipe.errors import InputError
from autopipe.hardware.lookup import match_device
from autopipe.hardware.roofline import LAUNCH, by_kind
from autopipe.hardware.specification import Specification

KINDS = (*(str(kind) for kind in OperatorKind), LAUNCH)
# How strongly a kind that the profile says little of is drawn to the factor of all kinds together: as much as
# a twentieth of the profile's equations would.
SHRINKAGE = 0.05


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """By kind of operator, and for the floor of each: the measured time over the roofline's; and where it is from."""

    factors: dict[str, float]
    origin: str


def calibration_of(profile: Profile, target: Specification) -> Calibration:
    """Return the correction that ``profile`` suggests, measured on ``target`` or on a device of the catalogue.

    Raises
    ------
    InputError
        If nobody knows the device that it was measured on.
    """
    memory = profile.device_memory_bytes
    device = match_device(profile.device, memory, among=[target]) or match_device(profile.device, memory)
    if device is None:
        raise InputError(
            f"the profile of {profile.model!r} was measured on {profile.device!r}, of which the catalogue has no "
            "figures, so that nothing can be learnt from its times. Describe that device as JSON, with its name under "
            '"matches", and pass the file as the device.'
        )
    return calibrate(profile, device)


def calibrate(profile: Profile, device: Specification) -> Calibration:
    """Return the correction that ``profile``, measured on ``device``, suggests.

    Raises
    ------
    InputError
        If the profile holds no measured times, or not the work that was timed.

    Notes
    -----
    Non-negative least squares in relative error over the forwards and backwards of all layers. A kind that takes
    little of the measured time is drawn towards the factor of all kinds together, for the layers cannot tell it.
    """
    import numpy as np
    from scipy.optimize import nnls

    rows, targets = [], []
    for operators, measured in _measured(profile):
        parts = by_kind(operators, device)
        rows.append([parts.get(kind, 0.0) / measured for kind in KINDS])
        targets.append(1.0)
    if not rows:
        raise InputError(
            f"the profile of {profile.model!r} on {profile.device} cannot calibrate anything: it holds no measured "
            "times together with the work that was timed. Measure it anew with this version of autopipe."
        )
    equations = np.array(rows)
    overall = float(1.0 / np.median(equations.sum(axis=1)))
    weight = (SHRINKAGE * len(rows)) ** 0.5
    # In terms of factor / overall, every kind is drawn to 1 by the same weight.
    scaled = np.vstack([equations * overall, weight * np.eye(len(KINDS))])
    solution, _ = nnls(scaled, np.concatenate([targets, weight * np.ones(len(KINDS))]))
    factors = {kind: overall * float(factor) for kind, factor in zip(KINDS, solution, strict=True)}
    return Calibration(factors=factors, origin=f"{profile.model} on {profile.device}")


def _measured(profile: Profile) -> Iterator[tuple[tuple[Work, ...], int]]:
    """Yield the work of every forward and backward that was timed, with its nanoseconds."""
    sizes = {size: position for position, size in enumerate(profile.micro_batches)}
    for work in profile.work:
        costs = profile.loss if work.layer == len(profile.layers) else profile.layers[work.layer].costs
        cost = costs[sizes[work.micro_batch]]
        if cost.source is not Source.MEASURED or work.sweep is Sweep.INPUT_GRAD:
            continue
        duration = cost.forward_ns if work.sweep is Sweep.FORWARD else cost.backward_ns
        if duration > 0 and work.operators:
            yield work.operators, duration
