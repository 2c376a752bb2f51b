"""What the user wishes of the boundaries: layers pinned to stages, cuts ruled out, layers kept on one rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from autopipe.documents.profile import Profile
from autopipe.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Wishes by position of layer.

    Attributes
    ----------
    pins : tuple of (layer, stage)
        The stage of a layer; negative stages count from the last one.
    forbidden_cuts : tuple of int
        Layers with which no stage may begin.
    together : tuple of tuples of int
        Layers that are to be on one rank.
    """

    pins: tuple[tuple[int, int], ...] = ()
    forbidden_cuts: tuple[int, ...] = ()
    together: tuple[tuple[int, ...], ...] = ()


def read_wishes(
    profile: Profile,
    *,
    pins: Sequence[str] = (),
    forbidden_cuts: Sequence[str] = (),
    together: Sequence[str] = (),
    tied_together: bool = False,
) -> Wishes:
    """Return wishes that are written with the names of layers, or patterns of names.

    Parameters
    ----------
    pins : sequence of str
        ``LAYERS=STAGE``.
    forbidden_cuts : sequence of str
        Names of layers with which no stage may begin.
    together : sequence of str
        Modules, each of which is to be whole on one rank (``blocks.*``: every block for itself), or
        several names with commas between, which are to be on the same one.
    tied_together : bool
        Whether the layers that share a parameter are to be on one rank.

    Raises
    ------
    InputError
        If a name matches no layer, or a pin has no number.
    """
    names = [layer.name for layer in profile.layers]
    pinned = []
    for text in pins:
        pattern, _, stage = text.rpartition("=")
        if not pattern or not stage.strip().lstrip("-").isdigit():
            raise InputError(f"--pin {text!r} names no stage: write LAYERS=STAGE, for example {names[0]}=0.")
        pinned += [(layer, int(stage)) for layer in names_matching(pattern, names)]
    groups = [group for text in together for group in _groups(text, names)]
    if tied_together:
        groups += [shared.layers for shared in profile.shared if len(shared.layers) > 1]
    cuts = {layer for pattern in forbidden_cuts for layer in names_matching(pattern, names)}
    return Wishes(pins=tuple(pinned), forbidden_cuts=tuple(sorted(cuts - {0})), together=tuple(groups))


def names_matching(pattern: str, names: Sequence[str]) -> list[int]:
    """Return the positions of the names that match ``pattern``.

    Raises
    ------
    InputError
        If none does.
    """
    found = [index for index, name in enumerate(names) if fnmatchcase(name, pattern)]
    if not found:
        raise InputError(
            f"no layer is called {pattern!r}: the first are {', '.join(names[:3])} and the last {names[-1]}; "
            "autopipe report PROFILE lists them all."
        )
    return found


def _groups(text: str, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the groups of layers that one wish to keep together means."""
    if "," in text:
        return [tuple(sorted({layer for part in text.split(",") for layer in names_matching(part.strip(), names)}))]
    modules: dict[str, list[int]] = {}
    depth = text.count(".") + 1
    for layer, name in enumerate(names):
        module = ".".join(name.split(".")[:depth])
        if fnmatchcase(module, text) and module.count(".") + 1 == depth:
            modules.setdefault(module, []).append(layer)
    if not modules:
        names_matching(text, names)
        return [tuple(names_matching(text, names))]
    return [tuple(layers) for layers in modules.values()]
