"""A device is found in the catalogue by its name, in a user's file, or by what its driver calls it."""

import difflib
import os
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from autopipe.documents.files import decode
from autopipe.errors import DocumentError, InputError
from autopipe.hardware.specification import Specification, check_specification

MEMORY_TOLERANCE = 0.12


def catalogue_names() -> tuple[str, ...]:
    """Return the names of all devices of the catalogue, sorted."""
    folder = resources.files("autopipe.hardware") / "catalogue"
    return tuple(sorted(item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json")))


def find_device(name: str) -> Specification:
    """Return the device called ``name`` in the catalogue, or the one that the JSON file ``name`` describes.

    A file may leave out all that it does not change of a device of the catalogue, which it names as ``base``.

    Raises
    ------
    InputError
        If there is no such device, with the nearest names; or a figure cannot be used.
    DocumentError
        If the file is damaged.
    """
    if is_file_name(name):
        return _from_file(Path(name))
    if name.lower() in catalogue_names():
        return _from_catalogue(name.lower())
    near = difflib.get_close_matches(name.lower(), catalogue_names(), n=4, cutoff=0.4)
    known = f"Near it: {', '.join(near)}" if near else f"The catalogue has {', '.join(catalogue_names())}"
    raise InputError(
        f"there is no device {name!r} here, and the catalogue has none of that name. {known}; "
        "or write your own figures as JSON and pass the file's name."
    )


def is_file_name(name: str) -> bool:
    """Return whether ``name`` is meant as a file: its form says so."""
    return name.endswith(".json") or os.sep in name


def match_device(
    name: str, memory_bytes: int | None = None, *, among: Iterable[Specification] | None = None
) -> Specification | None:
    """Return the device that its driver calls ``name``; None if it is not known.

    Parameters
    ----------
    memory_bytes : int, optional
        What it has, to tell devices of one name apart: at most 12 % off.
    among : iterable of Specification, optional
        Where to look; by default in the catalogue.
    """
    found = []
    for device in (find_device(known) for known in catalogue_names()) if among is None else among:
        if name.casefold() not in {one.casefold() for one in (device.name, device.title, *device.matches)}:
            continue
        distance = 0.0
        if memory_bytes is not None:
            # What a profile states may or may not hold what the framework takes for itself.
            sizes = (device.memory_bytes.value, device.usable_bytes)
            distance = min(abs(size - memory_bytes) / size for size in sizes)
        if distance <= MEMORY_TOLERANCE:
            found.append((distance, device))
    return min(found, key=lambda pair: pair[0])[1] if found else None


@cache
def _from_catalogue(name: str) -> Specification:
    text = (resources.files("autopipe.hardware") / "catalogue" / f"{name}.json").read_bytes()
    return decode(text, Specification, origin=f"the catalogue's {name}")


def _from_file(path: Path) -> Specification:
    try:
        text = path.read_bytes()
        fields: Any = msgspec.json.decode(text)
    except (OSError, msgspec.DecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DocumentError(f"cannot read the device in {path}: {reason}. Check the file.") from None
    if isinstance(fields, dict) and "base" in fields:
        base = msgspec.to_builtins(find_device(str(fields.pop("base"))))
        text = msgspec.json.encode(_merged(base, {"matches": [], **fields}))
    specification = decode(text, Specification, origin=str(path))
    check_specification(specification)
    return specification


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes``; of figures by dtype, those that are named."""
    merged = dict(base)
    for name, value in changes.items():
        by_dtype = isinstance(value, dict) and isinstance(merged.get(name), dict) and "value" not in value
        merged[name] = {**merged[name], **value} if by_dtype else value
    return merged
