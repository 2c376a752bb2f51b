"""A profile as a table: the heaviest layers, the rest in one row, the loss, and columns that add up."""

from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autopipe.documents.profile import Cost, Profile, ProfiledLayer
from autopipe.errors import InputError
from autopipe.reporting.columns import (
    add_figures,
    add_words,
    bytes_scale,
    figures_that_add_up,
    plain_table,
    shares_that_add_up,
    times_scale,
)
from autopipe.units import format_bytes, format_share, format_time

HEAVIEST = 12
MOST_GROUPS = 6
DOMINATING_SHARE = 0.2
DOMINATING_TIMES = 3
WEIGHTY_SHARE = 0.01
NOISY_SHARE = 0.05
LOADED_SHARE = 0.10


class Row(NamedTuple):
    """One row of the table: what it is and its five figures."""

    number: str
    name: str
    forward_ns: int
    backward_ns: int
    state_bytes: int
    saved_bytes: int
    transient_bytes: int


def profile_report(profile: Profile, *, micro_batch: int | None = None, heaviest: int = HEAVIEST) -> Group:
    """Return headline, table and remarks about ``profile`` at one micro-batch size.

    Parameters
    ----------
    profile : Profile
    micro_batch : int, optional
        A profiled size in samples; the largest by default.
    heaviest : int
        How many layers get a row of their own, the longest forward and backward first.

    Raises
    ------
    InputError
        If the profile has no such micro-batch size.
    """
    size = profile.micro_batches[-1] if micro_batch is None else micro_batch
    if size not in profile.micro_batches:
        known = ", ".join(map(str, profile.micro_batches))
        raise InputError(f"micro-batch size {size} was not profiled, only {known}: ask for one of these.")
    index = profile.micro_batches.index(size)
    tables: list[RenderableType] = [_table(rows(profile, index, heaviest)), ""]
    if 1 < len({layer.group for layer in profile.layers}) < len(profile.layers):
        tables += [_group_table(profile, index), ""]
    return Group(_headline(profile, size), "", *tables, *_remarks(profile, index))


def rows(profile: Profile, index: int, heaviest: int = HEAVIEST) -> tuple[Row, ...]:
    """Return the rows at micro-batch size ``index``: heaviest layers, other layers, loss, total.

    Every figure of the total is the sum of the rows above it, but for the transient memory, of which the
    largest counts, since one layer runs at a time.
    """
    layers = [
        Row(
            str(number),
            layer.name,
            layer.costs[index].forward_ns,
            layer.costs[index].backward_ns,
            layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes + layer.buffer_bytes,
            layer.costs[index].saved_bytes,
            layer.costs[index].transient_bytes,
        )
        for number, layer in enumerate(profile.layers)
    ]
    layers.sort(key=lambda row: -(row.forward_ns + row.backward_ns))
    shown, others = layers[:heaviest], layers[heaviest:]
    loss = profile.loss[index]
    if others:
        shown.append(_sum(f"{len(others)} other layers", others))
    name = f"loss: {profile.loss_name}"
    shown.append(Row("", name, loss.forward_ns, loss.backward_ns, 0, loss.saved_bytes, loss.transient_bytes))
    return (*shown, _sum("total", shown))


def _group_table(profile: Profile, index: int) -> Table:
    """Return a table of the heaviest groups of layers that are identical but for their weights."""
    groups: dict[int, list[ProfiledLayer]] = {}
    for layer in profile.layers:
        groups.setdefault(layer.group, []).append(layer)

    def time_of(layers: list[ProfiledLayer]) -> int:
        return sum(layer.costs[index].forward_ns + layer.costs[index].backward_ns for layer in layers)

    def saved_by(layers: list[ProfiledLayer]) -> int:
        return sum(layer.costs[index].saved_bytes for layer in layers)

    time, saved = (max(1, measure(list(profile.layers))) for measure in (time_of, saved_by))
    table = plain_table("Groups of identical layers")
    add_figures(table, "layers")
    add_words(table, "the first of them")
    for name in ("time", "saved"):
        add_figures(table, name)
    for layers in sorted(groups.values(), key=lambda one: -time_of(one))[:MOST_GROUPS]:
        shares = format_share(time_of(layers) / time), format_share(saved_by(layers) / saved)
        table.add_row(str(len(layers)), layers[0].name, *shares)
    return table


def _sum(name: str, parts: list[Row]) -> Row:
    return Row(
        "",
        name,
        sum(row.forward_ns for row in parts),
        sum(row.backward_ns for row in parts),
        sum(row.state_bytes for row in parts),
        sum(row.saved_bytes for row in parts),
        max(row.transient_bytes for row in parts),
    )


def _table(rows: tuple[Row, ...]) -> Table:
    table = plain_table("Layers, heaviest first")
    time = times_scale(tuple(max(row.forward_ns, row.backward_ns) for row in rows))
    size = bytes_scale(tuple(max(row.state_bytes, row.saved_bytes, row.transient_bytes) for row in rows))
    add_figures(table, "#")
    add_words(table, "layer")
    add_figures(table, "forward", time.unit)
    add_figures(table, "backward", time.unit)
    add_figures(table, "share")
    for name in ("state", "saved", "transient"):
        add_figures(table, name, size.unit)
    parts = rows[:-1]
    shares = (*shares_that_add_up(tuple(row.forward_ns + row.backward_ns for row in parts)), 1.0)
    columns = (
        figures_that_add_up(tuple(row.forward_ns for row in parts), time),
        figures_that_add_up(tuple(row.backward_ns for row in parts), time),
        tuple(map(format_share, shares)),
        figures_that_add_up(tuple(row.state_bytes for row in parts), size),
        figures_that_add_up(tuple(row.saved_bytes for row in parts), size),
        tuple(size.format(row.transient_bytes) for row in rows),
    )
    for row, *figures in zip(rows, *columns, strict=True):
        table.add_row(row.number, row.name, *figures, style="bold" if row is rows[-1] else None)
    return table


def _headline(profile: Profile, size: int) -> Text:
    costs = [cost for layer in profile.layers for cost in layer.costs]
    sources = ", ".join(sorted({cost.source.value for cost in costs}))
    memory = "" if profile.device_memory_bytes is None else f" with {format_bytes(profile.device_memory_bytes)}"
    autocast = "" if profile.autocast is None else f" under autocast to {profile.autocast}"
    sizes = ", ".join(map(str, profile.micro_batches))
    return Text(
        f"{profile.model}: {len(profile.layers)} layers on {profile.device}{memory}, {profile.dtype}{autocast}, "
        f"torch {profile.torch}, optimizer {profile.optimizer}.\n"
        f"Times are {sources} ({profile.clock}) for micro-batch size {size} of {sizes}; "
        "state = parameters, gradients, optimizer state and buffers."
    )


def _remarks(profile: Profile, index: int) -> list[Text]:
    remarks = []
    for whole in profile.whole:
        if whole.micro_batch == profile.micro_batches[index] and whole.step_ns:
            difference = whole.layers_ns / whole.step_ns - 1
            remarks.append(
                f"The layers add up to {format_time(whole.layers_ns)}, the unsplit step takes "
                f"{format_time(whole.step_ns)} ({100 * difference:+.1f} %)."
            )
    total = sum(layer.costs[index].forward_ns + layer.costs[index].backward_ns for layer in profile.layers)
    spreads = [
        (_relative_mad(layer.costs[index]), layer.name)
        for layer in profile.layers
        if layer.costs[index].forward_spread is not None
        and layer.costs[index].forward_ns + layer.costs[index].backward_ns >= WEIGHTY_SHARE * total
    ]
    if spreads:
        worst, name = max(spreads)
        remarks.append(
            f"Medians; among layers of at least {format_share(WEIGHTY_SHARE)} of the time the largest relative "
            f"deviation (MAD) is {format_share(worst)}, of {name}."
        )
        if worst > NOISY_SHARE:
            remarks[-1] += " That is much: profile again on a quiet machine."
    remarks += _odd(profile, index)
    if profile.foreign_load is not None and profile.foreign_load > LOADED_SHARE:
        remarks.append(
            f"Other programs used {format_share(profile.foreign_load)} of the machine meanwhile: "
            "times may be too long; profile again on a quiet machine."
        )
    return [Text(remark) for remark in remarks]


def _odd(profile: Profile, index: int) -> list[str]:
    """Return what stands out among the layers: one that dominates, and those that the host cannot keep up with."""
    times = {layer.name: layer.costs[index].forward_ns + layer.costs[index].backward_ns for layer in profile.layers}
    total = sum(times.values())
    found = []
    name = max(times, key=times.__getitem__)
    if times[name] > max(DOMINATING_SHARE, DOMINATING_TIMES / len(times)) * total:
        share = times[name] / total
        found.append(
            f"{name} alone takes {format_share(share)} of the time of all layers: more than {int(1 / share)} stages "
            "cannot share the work evenly, unless it is opened (--granularity, or fewer --leaf)."
        )
    bound = [
        layer.name
        for layer in profile.layers
        if (layer.costs[index].host_ns or 0) > times[layer.name] >= WEIGHTY_SHARE * total / len(times)
    ]
    if bound:
        found.append(
            f"{len(bound)} layers, such as {bound[0]}, take the host longer to start than the device to run: the "
            "device will wait for it. Larger micro-batches or torch.compile shorten that."
        )
    return found


def _relative_mad(cost: Cost) -> float:
    spreads = ((cost.forward_spread, cost.forward_ns), (cost.backward_spread, cost.backward_ns))
    mad = sum(spread.mad_ns for spread, _ in spreads if spread is not None)
    median = sum(duration for spread, duration in spreads if spread is not None)
    return mad / median if median else 0.0
