"""``--device`` may name a device that is not there: the model is then built without memory, and not run."""

import torch

from autopipe.cli.model import Built, build
from autopipe.documents.files import load
from autopipe.documents.profile import Profile
from autopipe.errors import AutopipeError, InputError
from autopipe.hardware.calibration import Calibration, calibration_of
from autopipe.hardware.lookup import catalogue_names, find_device, is_file_name
from autopipe.hardware.specification import Specification


def absent_device(name: str | None) -> Specification | None:
    """Return the device of the catalogue or of a file that ``name`` means; None for one that torch knows.

    Raises
    ------
    InputError
        If it is none of them, with the nearest names.
    DocumentError
        If the file is damaged.
    """
    if name is None:
        return None
    if not is_file_name(name) and name.lower() not in catalogue_names():
        try:
            torch.device(name)
        except RuntimeError:
            return find_device(name)
        return None
    return find_device(name)


def build_without_memory(spec: str) -> tuple[Built, str | None]:
    """Return what the factory that ``spec`` names gives on the meta device; in memory where that fails, and then why.

    Raises
    ------
    InputError
        If it cannot be built in memory either.
    """
    try:
        return build(spec, on="meta"), None
    except AutopipeError as error:
        built = build(spec)
        return built, f"The model was built in memory, because it could not be built without: {error}"


def calibration_for(path: str | None, device: Specification | None) -> Calibration | None:
    """Return the correction that the measured profile at ``path`` suggests; None without a path.

    Raises
    ------
    InputError
        If there is no ``device`` to estimate for, or nobody knows the one that the profile was measured on.
    DocumentError
        If the profile cannot be read.
    """
    if path is None:
        return None
    if device is None:
        raise InputError("--calibrate corrects estimated times: add --device with a name of the catalogue or a file.")
    return calibration_of(load(path, Profile), device)
