"""Profiles made by hand or at random, for the tests that need no model."""

from collections.abc import Sequence

from hypothesis import strategies as st

from autopipe.documents.profile import Cost, Profile, ProfiledLayer, ProfiledValue, SharedParameter, Source


def cost(forward_ns: int = 10, backward_ns: int | None = None, **figures: int) -> Cost:
    """A cost whose backward takes twice the forward if not given."""
    return Cost(
        forward_ns=forward_ns,
        backward_ns=2 * forward_ns if backward_ns is None else backward_ns,
        saved_bytes=figures.pop("saved_bytes", 0),
        transient_bytes=figures.pop("transient_bytes", 0),
        source=Source.MEASURED,
        **figures,
    )


def layer(name: str, costs: Sequence[Cost], parameter_bytes: int = 0, **figures: int) -> ProfiledLayer:
    """A layer trained with an optimizer that keeps two numbers per parameter."""
    return ProfiledLayer(
        name=name,
        parameter_bytes=parameter_bytes,
        gradient_bytes=figures.pop("gradient_bytes", parameter_bytes),
        optimizer_bytes=figures.pop("optimizer_bytes", 2 * parameter_bytes),
        buffer_bytes=figures.pop("buffer_bytes", 0),
        costs=tuple(costs),
        **figures,
    )


def profile(
    layers: Sequence[ProfiledLayer],
    values: Sequence[ProfiledValue] | None = None,
    *,
    loss: Sequence[Cost] | None = None,
    micro_batches: Sequence[int] = (1,),
    crossing_bytes: int = 0,
    **fields: object,
) -> Profile:
    """A profile; without values, every layer feeds the next with ``crossing_bytes`` per sample."""
    sizes = tuple(micro_batches)
    if values is None:
        values = [
            ProfiledValue(
                name=f"v{index}",
                producer=index,
                consumers=(index + 1,),
                requires_grad=True,
                bytes=tuple(crossing_bytes * size for size in sizes),
            )
            for index in range(len(layers) - 1)
        ]
    return Profile(
        model="model",
        device="test device",
        torch="2",
        dtype="float32",
        optimizer="adamw",
        loss_name="mse",
        clock="none",
        micro_batches=sizes,
        layers=tuple(layers),
        values=tuple(values),
        loss=tuple(loss or [cost(0)] * len(sizes)),
        graph_fingerprint="graph",
        **fields,
    )


def chain_profile(forward_ns: Sequence[int], *, crossing_bytes: int = 0, **figures: int) -> Profile:
    """A chain of layers with these forward times at micro-batches of one sample."""
    layers = [layer(f"layer{index}", [cost(time)], **figures) for index, time in enumerate(forward_ns)]
    return profile(layers, crossing_bytes=crossing_bytes)


figures = st.integers(0, 50)
costs = st.builds(
    lambda *six: Cost(
        forward_ns=six[0],
        backward_ns=six[1],
        saved_bytes=six[2],
        transient_bytes=six[3],
        forward_transient_bytes=six[4],
        source=Source.MEASURED,
    ),
    *(figures,) * 5,
)


@st.composite
def profiles(
    draw: st.DrawFn, *, max_layers: int = 7, chain: bool = False, tied: bool = True, optimizer: bool = True
) -> Profile:
    """A random profile: a graph with skips and branches (a row if ``chain``), shared parameters, a loss."""
    count = draw(st.integers(1, max_layers))
    shared = []
    if tied and count > 1 and draw(st.booleans()):
        readers = sorted(draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=3)))
        shared.append(SharedParameter(name="tied", layers=tuple(readers), bytes=draw(st.integers(0, 40))))
    layers = []
    for index in range(count):
        held = sum(one.bytes for one in shared if index in one.layers)
        layers.append(
            layer(
                f"layer{index}",
                [draw(costs)],
                parameter_bytes=held + draw(figures),
                buffer_bytes=draw(st.integers(0, 5)),
                optimizer_ns=draw(figures) if optimizer else None,
            )
        )
    values = []
    for index in range(count - 1):
        consumers = {index + 1}
        if not chain:
            later = st.sets(st.integers(index + 1, count - 1), min_size=1, max_size=2)
            consumers = draw(st.one_of(st.just({index + 1}), later))
        saved_at = draw(st.none() | st.sampled_from(sorted(consumers)))
        values.append(
            ProfiledValue(
                name=f"v{index}",
                producer=index,
                consumers=tuple(sorted(consumers)),
                requires_grad=True if chain else draw(st.booleans()),
                bytes=(draw(figures),),
                saved_at=saved_at,
            )
        )
    return profile(layers, values, loss=[draw(costs)], shared=tuple(shared))
