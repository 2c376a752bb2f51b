"""Two profiles of one model are laid side by side, layer by layer."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopipe.documents.profile import Cost, Profile
from autopipe.errors import InputError
from autopipe.reporting.columns import add_figures, add_words, bytes_scale, plain_table, times_scale
from autopipe.reporting.profile_table import HEAVIEST
from autopipe.units import format_bytes, format_time


def profile_comparison(first: Profile, second: Profile, *, heaviest: int = HEAVIEST) -> Group:
    """Return a table of the layers that both profiles have, those first whose times differ most.

    Times are forward and backward together, at the largest micro-batch size that both have.

    Raises
    ------
    InputError
        If they have no layer, or no micro-batch size, in common.
    """
    sizes = set(first.micro_batches) & set(second.micro_batches)
    if not sizes:
        raise InputError(
            f"one profile was taken at micro-batch sizes {', '.join(map(str, first.micro_batches))} and the other at "
            f"{', '.join(map(str, second.micro_batches))}: profile one of them at a size of the other."
        )
    size = max(sizes)
    before, after = (_costs(profile, size) for profile in (first, second))
    names = [name for name in before if name in after]
    if len(names) <= 1:
        raise InputError(
            f"the profiles of {first.model} and {second.model} have no layer in common: compare two of one model."
        )
    names.sort(key=lambda name: -abs(_ns(after[name]) - _ns(before[name])))
    heads: tuple[RenderableType, ...] = (_head("A", first), _head("B", second), f"Micro-batches of {size}.", "")
    return Group(*heads, _table(names[:heaviest], before, after), "", *_remarks(first, second, before, after))


def _costs(profile: Profile, size: int) -> dict[str, Cost]:
    index = profile.micro_batches.index(size)
    costs = {layer.name: layer.costs[index] for layer in profile.layers}
    return {**costs, "loss": profile.loss[index]}


def _ns(cost: Cost) -> int:
    return cost.forward_ns + cost.backward_ns


def _head(letter: str, profile: Profile) -> str:
    sources = ", ".join(sorted({cost.source.value for layer in profile.layers for cost in layer.costs}))
    return (
        f"{letter}: {profile.model} on {profile.device}, {profile.dtype}, torch {profile.torch}, {profile.optimizer}; "
        f"times are {sources}."
    )


def _table(names: list[str], before: dict[str, Cost], after: dict[str, Cost]) -> Table:
    table = plain_table("Layers whose times differ most")
    time = times_scale(tuple(max(_ns(before[name]), _ns(after[name])) for name in names))
    size = bytes_scale(tuple(max(before[name].saved_bytes, after[name].saved_bytes) for name in names))
    add_words(table, "layer")
    for letter in "AB":
        add_figures(table, f"{letter} time", time.unit)
    add_figures(table, "B / A")
    for letter in "AB":
        add_figures(table, f"{letter} saved", size.unit)
    for name in names:
        old, new = before[name], after[name]
        table.add_row(
            name,
            time.format(_ns(old)),
            time.format(_ns(new)),
            f"{_ns(new) / _ns(old):.2f}" if _ns(old) else "-",
            size.format(old.saved_bytes),
            size.format(new.saved_bytes),
        )
    return table


def _remarks(first: Profile, second: Profile, before: dict[str, Cost], after: dict[str, Cost]) -> list[Text]:
    old, new = (sum(map(_ns, costs.values())) for costs in (before, after))
    kept, keeps = (sum(cost.saved_bytes for cost in costs.values()) for costs in (before, after))
    ratio = f" ({new / old:.2f} of it)" if old else ""
    remarks = [
        f"All layers and the loss: {format_time(old)} in A, {format_time(new)} in B{ratio}; "
        f"saved {format_bytes(kept)} and {format_bytes(keeps)}."
    ]
    for letter, mine, others in (("A", before, after), ("B", after, before)):
        alone = [name for name in mine if name not in others]
        if alone:
            remarks.append(f"Only {letter} has {len(alone)} of its layers, such as {alone[0]}.")
    if first.graph_fingerprint != second.graph_fingerprint:
        remarks.append("The two were recorded as different graphs: the model, or how it was recorded, has changed.")
    return [Text(remark) for remark in remarks]
