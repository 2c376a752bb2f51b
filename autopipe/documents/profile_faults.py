"""What the figures of a profile contradict each other in, so that nothing is computed from them."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autopipe.documents.profile import Cost, Profile

LARGEST = 1 << 50


def profile_faults(profile: "Profile") -> Iterator[str]:
    """Yield what the figures of ``profile`` contradict each other in, each with its path."""
    sizes, layers = profile.micro_batches, profile.layers
    if not layers:
        yield "layers is empty"
    if not sizes or sizes[0] < 1 or any(low >= high for low, high in pairwise(sizes)):
        yield f"micro_batches is {sizes}, not ascending from at least 1"
    seen: dict[str, int] = {}
    for index, layer in enumerate(layers):
        path = f"layers[{index}] ({layer.name})"
        if seen.setdefault(layer.name, index) != index:
            yield f"{path}.name is also that of layers[{seen[layer.name]}]"
        for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes", "optimizer_ns"):
            yield from _figure(getattr(layer, name), f"{path}.{name}")
        yield from _costs(layer.costs, len(sizes), f"{path}.costs")
    yield from _costs(profile.loss, len(sizes), "loss")
    yield from _figure(profile.link_latency_ns, "link_latency_ns")
    if profile.device_memory_bytes is not None and not 1 <= profile.device_memory_bytes <= LARGEST:
        yield f"device_memory_bytes is {profile.device_memory_bytes}, outside 1 to 2**50"
    for name in ("whole", "ranks", "links"):
        for index, part in enumerate(getattr(profile, name)):
            for field in part.__struct_fields__:
                figure = getattr(part, field)
                if isinstance(figure, int):
                    yield from _figure(figure, f"{name}[{index}].{field}")
    if profile.link_bytes_per_s is not None and profile.link_bytes_per_s < 1:
        yield f"link_bytes_per_s is {profile.link_bytes_per_s}, below 1"
    if profile.conditions is not None:
        yield from (f"conditions.{fault}" for fault in profile.conditions.faults())
        if profile.conditions.nodes:
            yield "conditions.nodes is given, and which rank is on which machine is for a plan to say"
    yield from _values(profile)
    for index, shared in enumerate(profile.shared):
        yield from _layer_numbers(shared.layers, 0, len(layers), f"shared[{index}] ({shared.name}).layers")
        yield from _figure(shared.bytes, f"shared[{index}] ({shared.name}).bytes")


def _values(profile: "Profile") -> Iterator[str]:
    last = len(profile.layers)
    for index, value in enumerate(profile.values):
        path = f"values[{index}] ({value.name})"
        yield from _layer_numbers((value.producer,), 0, last, f"{path}.producer")
        yield from _layer_numbers(value.consumers, value.producer + 1, last, f"{path}.consumers")
        if value.saved_at is not None and not value.producer < value.saved_at < last:
            yield f"{path}.saved_at is {value.saved_at}, not a layer after its producer {value.producer}"
        if len(value.bytes) != len(profile.micro_batches):
            yield f"{path}.bytes has {len(value.bytes)} entries for {len(profile.micro_batches)} micro-batch sizes"
        yield from _layer_numbers(value.readers, value.producer + 1, last, f"{path}.readers")
        for name in ("bytes", "gradient_bytes", "storage_bytes"):
            figures = getattr(value, name)
            if name != "bytes" and len(figures) not in (0, len(profile.micro_batches)):
                yield f"{path}.{name} has {len(figures)} entries, not one per micro-batch size or none"
            for size in figures:
                yield from _figure(size, f"{path}.{name}")


def _costs(costs: tuple["Cost", ...], sizes: int, path: str) -> Iterator[str]:
    if len(costs) != sizes:
        yield f"{path} has {len(costs)} entries for {sizes} micro-batch sizes"
    for index, cost in enumerate(costs):
        for name in cost.__struct_fields__:
            figure = getattr(cost, name)
            if figure is None or isinstance(figure, int):
                yield from _figure(figure, f"{path}[{index}].{name}")


def _figure(figure: int | None, path: str) -> Iterator[str]:
    if figure is not None and not 0 <= figure <= LARGEST:
        yield f"{path} is {figure}, outside 0 to 2**50"


def _layer_numbers(numbers: tuple[int, ...], least: int, end: int, path: str) -> Iterator[str]:
    ascending = all(low < high for low, high in pairwise(numbers))
    if not ascending or any(not least <= number < end for number in numbers):
        yield f"{path} is {numbers}, not ascending layers from {least} to {end - 1}"
