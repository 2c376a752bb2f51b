"""What is asked of the planner is checked, and what it leaves open is filled in."""

import msgspec

from autopipe.documents.profile import Profile
from autopipe.errors import InfeasibleError, InputError
from autopipe.hardware.cluster import Cluster, Link


def with_profiled(cluster: Cluster, profile: Profile) -> Cluster:
    """Return ``cluster`` with the memory and links that it leaves open taken from ``profile``."""

    def filled(link: Link) -> Link:
        return Link(
            latency_ns=profile.link_latency_ns if link.latency_ns is None else link.latency_ns,
            bytes_per_s=profile.link_bytes_per_s if link.bytes_per_s is None else link.bytes_per_s,
        )

    devices = tuple(
        msgspec.structs.replace(device, memory_bytes=device.memory_bytes or profile.device_memory_bytes)
        for device in cluster.devices
    )
    return Cluster(devices=devices, intra_node=filled(cluster.intra_node), inter_node=filled(cluster.inter_node))


def stage_count(profile: Profile, cluster: Cluster, stages: int | None) -> int:
    """Return how many stages to cut, one per device.

    Raises
    ------
    InputError
        If ``stages`` is below 1 or above the number of devices.
    InfeasibleError
        If there are fewer places for stages than that.
    """
    devices = len(cluster.devices)
    count = devices if stages is None else stages
    if not 1 <= count <= devices:
        raise InputError(f"{count} stages cannot be put on {devices} devices, one each: ask for 1 to {devices}.")
    layers = len(profile.layers)
    most = layers - len({position for position in profile.forbidden_cuts if 0 < position < layers})
    if count > most:
        why = f"its {layers} layers" if most == layers else f"the legal cuts between its {layers} layers"
        raise InfeasibleError(
            f"{count} stages need {count} groups of layers, and {why} of {profile.model!r} make at most {most}: a "
            f"stage would be empty. Plan for {most} devices (--gpus {most} or --stages {most}), or record the model "
            "with finer layers."
        )
    return count


def micro_batch_sizes(profile: Profile, batch_size: int, fixed: int | None) -> tuple[int, ...]:
    """Return the micro-batch sizes to search, ascending: for each number of micro-batches the smallest profiled size.

    Raises
    ------
    InputError
        If the batch is smaller than the smallest profiled size or than the size asked for, or does not
        suit a model whose batch size is burned in.
    """
    if batch_size < 1 or (fixed is not None and not 1 <= fixed <= batch_size):
        raise InputError(
            f"a batch of {batch_size} samples in micro-batches of {fixed or 'any size'} cannot be cut: give a batch of "
            "at least 1, and micro-batches no larger."
        )
    least, most = profile.micro_batches[0], min(profile.micro_batches[-1], batch_size)
    if fixed is None and least > batch_size:
        raise InputError(
            f"the profile was taken at {least} samples and more, and the batch has {batch_size}: costs are not guessed "
            f"below the smallest profiled size. Profile again with --micro-batch {batch_size}."
        )
    sizes = (fixed,) if fixed is not None else _one_for_each_count(batch_size, least, most)
    burned_in = profile.graph is not None and not profile.graph.batch_is_free
    if burned_in and any(batch_size % size for size in sizes):
        raise InputError(
            f"the model was recorded with a batch of {sizes[0]} burned in, and {batch_size} samples are no multiple of "
            "it: every micro-batch must have that size. Change the batch."
        )
    return sizes


def check_magnitude(profile: Profile, batch_size: int) -> None:
    """Return if sums over a whole step stay within 64-bit integers.

    Raises
    ------
    InputError
        If the figures of all layers together, times the batch, reach 2**60.
    """
    costs = [cost for layer in profile.layers for cost in layer.costs] + list(profile.loss)
    total = sum(cost.forward_ns + cost.backward_ns + cost.saved_bytes + cost.transient_bytes for cost in costs)
    total += sum(layer.parameter_bytes + layer.gradient_bytes + layer.optimizer_bytes for layer in profile.layers)
    total += sum(size * (1 + len(value.consumers)) for value in profile.values for size in value.bytes)
    if total * batch_size >= 1 << 60:
        raise InputError(
            f"a step of {batch_size} samples would add up to more than 36 years or an exbibyte by this profile: "
            "check its times and sizes, or the batch."
        )


def _one_for_each_count(batch_size: int, least: int, most: int) -> tuple[int, ...]:
    """Return, for each number of micro-batches that sizes ``least`` to ``most`` give, the smallest size that does."""
    counts = {-(-batch_size // size) for size in range(least, most + 1)}
    return tuple(sorted({max(least, -(-batch_size // count)) for count in counts}))
