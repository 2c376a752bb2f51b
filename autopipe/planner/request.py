"""What is asked of the planner is checked, and what it leaves open is filled in."""

from collections.abc import Collection

import msgspec

from autopipe.costs.size import SizedProfile
from autopipe.documents.profile import Profile
from autopipe.errors import InfeasibleError, InputError
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner.engine import ENGINES
from autopipe.planner.kind import PREFERENCE
from autopipe.planner.levels import recomputable
from autopipe.planner.wishes import Wishes, names_matching, read_wishes
from autopipe.schedules.named import VIRTUAL

AUTO, NONE, ALL = "auto", "none", "all"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be planned; what is None is searched.

    Attributes
    ----------
    batch_size : int
        Samples of one step, over all replicas.
    micro_batch_size, schedule, stages, replicas, virtual : optional
        ``stages`` is the pipeline size, ``virtual`` the stages of each rank.
    recompute : str
        ``auto``: where it pays; ``none``; ``all``: every layer that can; or patterns of names with commas between.
    pins, forbidden_cuts, together : tuple of str
        As `wishes.read_wishes` takes them.
    tied_together : bool
        Whether layers that share a parameter are to be on one rank.
    time_limit_s : float
        For the whole search; the best plan found by then is returned, with its true gap.
    engine : str
        What solves the integer programmes.
    """

    batch_size: int
    micro_batch_size: int | None = None
    schedule: str | None = None
    stages: int | None = None
    replicas: int | None = None
    virtual: int | None = None
    recompute: str = AUTO
    pins: tuple[str, ...] = ()
    forbidden_cuts: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    tied_together: bool = False
    time_limit_s: float = 30.0
    engine: str = ENGINES[0]

    def wishes(self, profile: Profile) -> Wishes:
        """Return what is wished of the boundaries."""
        return read_wishes(
            profile,
            pins=self.pins,
            forbidden_cuts=self.forbidden_cuts,
            together=self.together,
            tied_together=self.tied_together,
        )


def check_request(request: Request) -> None:
    """Return if the choices that ``request`` fixes exist.

    Raises
    ------
    InputError
        If one does not.
    """
    if request.engine not in ENGINES:
        raise InputError(f"there is no engine {request.engine!r}: choose from {', '.join(ENGINES)}.")
    name, virtual = request.schedule, request.virtual
    if name is not None and name not in PREFERENCE:
        raise InputError(f"schedule {name!r} cannot be planned: choose from {', '.join(PREFERENCE)}.")
    if virtual is not None and virtual < 1:
        raise InputError(f"{virtual} virtual stages on a rank do not exist: give at least 1.")
    several = virtual is not None and virtual > 1
    if (several and name is not None and name not in VIRTUAL) or (virtual == 1 and name in VIRTUAL):
        raise InputError(
            f"schedule {name!r} does not have {virtual} stages on each rank: choose from {', '.join(VIRTUAL)} for "
            "several, another one for one."
        )


def shapes(profile: Profile, cluster: Cluster, request: Request) -> tuple[tuple[int, int], ...]:
    """Return the pipeline sizes and replicas (p, d) to search: p * d is the number of devices.

    Raises
    ------
    InputError
        If those asked for do not use the devices, or do not divide the batch.
    InfeasibleError
        If there are fewer places for stages than that.
    """
    devices = len(cluster.devices)
    for what, count in (("stages", request.stages), ("replicas", request.replicas)):
        if count is not None and not 1 <= count <= devices:
            raise InputError(f"{count} {what} cannot be put on {devices} devices, one each: ask for 1 to {devices}.")
        if count is not None and devices % count:
            raise InputError(
                f"{count} {what} on {devices} devices leave {devices % count} idle: ask for --gpus "
                f"{devices - devices % count}, or for a number that divides {devices}."
            )
    pairs = [(devices // count, count) for count in range(1, devices + 1) if devices % count == 0]
    pairs = [
        (ranks, replicas)
        for ranks, replicas in pairs
        if ranks == (request.stages or ranks) and replicas == (request.replicas or replicas)
    ]
    if not pairs:
        raise InputError(
            f"{request.stages} stages times {request.replicas} replicas are not {devices} devices: leave one of "
            "the two open."
        )
    divided = [pair for pair in pairs if request.batch_size % pair[1] == 0]
    if not divided:
        raise InputError(
            f"a batch of {request.batch_size} samples is not divided by {pairs[0][1]} replicas: give a multiple of it."
        )
    most = most_stages(profile)
    fitting = tuple(pair for pair in divided if pair[0] <= most)
    if not fitting:
        count = min(ranks for ranks, _ in divided)
        layers = len(profile.layers)
        why = f"its {layers} layers" if most == layers else f"the legal cuts between its {layers} layers"
        raise InfeasibleError(
            f"{count} stages need {count} groups of layers, and {why} of {profile.model!r} make at most {most}: a "
            f"stage would be empty. Plan for {most} devices (--gpus {most} or --stages {most}), or record the model "
            "with finer layers."
        )
    return fitting


def most_stages(profile: Profile) -> int:
    """Return into how many stages the layers can be cut."""
    layers = len(profile.layers)
    return layers - len({position for position in profile.forbidden_cuts if 0 < position < layers})


def recomputed_layers(sized: SizedProfile, request: Request) -> Collection[int] | None:
    """Return the layers that are to recompute whatever the plan, None if that is searched.

    Raises
    ------
    InputError
        If a pattern matches no layer, or one that cannot recompute.
    """
    match request.recompute:
        case "auto":
            return None
        case "none":
            return ()
        case "all":
            return recomputable(sized.costs)
    names = [layer.name for layer in sized.profile.layers]
    patterns = [pattern.strip() for pattern in request.recompute.split(",")]
    return sorted({layer for pattern in patterns for layer in names_matching(pattern, names)})


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
