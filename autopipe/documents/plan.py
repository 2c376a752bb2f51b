"""A `Plan` says which layers form which stage, on which rank, under which schedule, and how good that is."""

from collections.abc import Iterable, Iterator
from importlib import import_module

import msgspec

from autopipe.documents.conditions import Conditions
from autopipe.documents.files import Document, fingerprint
from autopipe.documents.graph import Graph
from autopipe.documents.profile import Source

LARGEST = 1 << 60
MOST_DEVICES = 1 << 16
_SIZES = (
    "batch_size",
    "micro_batch_size",
    "micro_batches",
    "pipeline_size",
    "data_parallel_size",
    "virtual_stages",
)


class StagePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers ``begin`` to ``end - 1`` on ``rank``, with the costs predicted for one micro-batch.

    ``parameter_bytes`` counts parameters, ``state_bytes`` parameters, gradients, optimizer state and
    buffers together, ``activation_bytes`` what one in-flight micro-batch holds and ``working_bytes`` how far
    above that the one in hand climbs, ``forward_working_bytes`` while its forward runs (None: as far).
    ``input_grad_ns`` and ``weight_grad_ns`` are the backward's two parts, None where they were not measured. Once per
    step come ``tied_ns``, to sum the gradients of parameters that other ranks hold too, ``replica_ns``, to sum all
    gradients over the replicas, and ``optimizer_ns``.
    """

    begin: int
    end: int
    rank: int
    layers: tuple[str, ...]
    recompute: tuple[str, ...] = ()
    forward_ns: int
    backward_ns: int
    input_grad_ns: int | None = None
    weight_grad_ns: int | None = None
    optimizer_ns: int = 0
    tied_ns: int = 0
    replica_ns: int = 0
    send_bytes: int = 0
    parameter_bytes: int
    state_bytes: int
    activation_bytes: int
    working_bytes: int = 0
    forward_working_bytes: int | None = None


class EdgePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stage ``source`` sends to stage ``target`` for one micro-batch, what comes back, and over which link.

    ``gradient`` tells if anything comes back; ``unsaved_bytes`` are the part of ``forward_bytes`` that the
    sending stage holds only until it has left (None: all of it), since its backward does not need it; a link's
    latency or bandwidth is None where it was not measured.
    """

    source: int
    target: int
    gradient: bool
    forward_bytes: int
    backward_bytes: int
    unsaved_bytes: int | None = None
    latency_ns: int | None = None
    bytes_per_s: int | None = None


class RankPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is predicted for one rank: its peak memory, its limit, its peak of in-flight micro-batches."""

    peak_bytes: int
    memory_limit_bytes: int | None
    in_flight: int
    busy_ns: int


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far from the best the plan can be.

    ``objective_ns``, ``objective_bound_ns`` and ``solver_gap`` speak of the solver's own objective;
    ``step_bound_ns`` is a time under which no step of a plan of the searched kind can be, and ``gap`` is
    (simulated step - step_bound_ns) / step_bound_ns. ``status`` is ``optimal``, ``feasible`` (stopped by
    the time limit) or ``heuristic`` (no solver ran).
    """

    status: str
    engine: str
    objective_ns: int
    objective_bound_ns: int
    solver_gap: float
    step_bound_ns: int
    gap: float


class Alternative(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan that was considered and lost: its choices and its predicted step, None where it does not fit.

    Where it was not ``solved``, the step is a time under which no step of these choices can be.
    """

    pipeline_size: int
    micro_batch_size: int
    micro_batches: int
    schedule: str
    data_parallel_size: int = 1
    virtual_stages: int = 1
    depth: int = 0
    step_ns: int | None
    solved: bool = True
    bounds: tuple[int, ...] = ()
    reason: str = ""


class Plan(Document, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="autopipe.plan"):
    """Stages, ranks, micro-batches and schedule for one model on one cluster, with a prediction and a proof.

    ``batch_size`` is the mini-batch of one replica in samples; ``micro_batches`` of them have
    ``micro_batch_size`` samples each (the last ones fewer if it does not divide). ``step_ns`` is a whole
    training step: all micro-batches, gradients summed over ranks and replicas, optimizer; ``bubble_ratio`` the
    idle share of it. Entry r * ``data_parallel_size`` + k of ``device_order`` is the device of pipeline rank r's
    replica k; devices are taken in turn where it is (). ``actions`` are the lines, one per rank, of a schedule
    that no name and sizes say, such as a fitted one. ``source`` tells
    where the layers' times come from. ``conditions`` are the executor's own costs that the step was predicted
    with (None: none of them). ``explanation`` are sentences on what would change the step.
    """

    model: str
    graph_fingerprint: str
    profile_fingerprint: str
    source: Source = Source.MEASURED
    batch_size: int
    micro_batch_size: int
    micro_batches: int
    pipeline_size: int
    data_parallel_size: int = 1
    device_order: tuple[int, ...] = ()
    virtual_stages: int = 1
    schedule: str
    depth: int = 0
    actions: tuple[str, ...] = ()
    stages: tuple[StagePlan, ...]
    ranks: tuple[RankPlan, ...]
    edges: tuple[EdgePlan, ...] = ()
    step_ns: int
    bubble_ratio: float
    certificate: Certificate
    binding: str
    explanation: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    link_latency_ns: int = 0
    link_bytes_per_s: int | None = None
    conditions: Conditions | None = None
    graph: Graph | None = None

    def __repr__(self) -> str:
        # Looked up when it is shown: tables are drawn by a room that knows this one.
        return str(import_module("autopipe.reporting.shown").text_of(self))

    def _repr_html_(self) -> str:
        return str(import_module("autopipe.reporting.shown").html_of(self))

    @property
    def fingerprint(self) -> str:
        """A digest of the whole plan: ranks that start together must agree on it."""
        return fingerprint(self)

    @property
    def stage_ranks(self) -> tuple[int, ...]:
        """The rank of each stage, by stage index."""
        return tuple(stage.rank for stage in self.stages)

    def faults(self) -> Iterator[str]:
        """Yield what the fields contradict each other in: sizes below 1, stages that are no row, other lengths."""
        for name in _SIZES:
            if not 1 <= getattr(self, name) <= LARGEST:
                yield f"{name} is {getattr(self, name)}, outside 1 to 2**60"
        if self.pipeline_size * self.data_parallel_size > MOST_DEVICES:
            yield f"pipeline_size times data_parallel_size is more than {MOST_DEVICES}"
        yield from _figures(self, "", names=("step_ns", "depth", "link_latency_ns", "link_bytes_per_s"))
        yield from _figures(self.certificate, "certificate.")
        for name in ("stages", "ranks", "edges", "alternatives"):
            for index, part in enumerate(getattr(self, name)):
                yield from _figures(part, f"{name}[{index}].")
        if not self.stages:
            yield "stages is empty"
        end = 0
        for index, stage in enumerate(self.stages):
            path = f"stages[{index}]"
            if stage.begin != end or stage.end <= stage.begin:
                yield f"{path} is layers {stage.begin} to {stage.end}, and should begin at {end} and hold some"
            elif not stage.layers:
                yield f"{path}.layers is empty, and the stage holds {stage.end - stage.begin}"
            if not 0 <= stage.rank < self.pipeline_size:
                yield f"{path}.rank is {stage.rank}, and there are {self.pipeline_size} ranks"
            end = stage.end
        if len(set(self.stage_ranks)) != self.pipeline_size:
            yield f"pipeline_size is {self.pipeline_size}, and not every rank has a stage"
        if len(self.ranks) != self.pipeline_size:
            yield f"ranks has {len(self.ranks)} entries for {self.pipeline_size} ranks"
        if self.graph is not None and len(self.graph.layers) != end:
            yield f"graph has {len(self.graph.layers)} layers, and the stages {end}"
        if self.graph is not None:
            yield from (f"graph.{fault}" for fault in self.graph.faults())
        for index, edge in enumerate(self.edges):
            if not 0 <= edge.source < edge.target < len(self.stages):
                yield f"edges[{index}] goes from stage {edge.source} to {edge.target} of {len(self.stages)}"
        if self.conditions is not None:
            yield from (f"conditions.{fault}" for fault in self.conditions.faults())
            if self.conditions.nodes and len(self.conditions.nodes) != self.pipeline_size:
                yield f"conditions.nodes has {len(self.conditions.nodes)} entries for {self.pipeline_size} ranks"
        places = self.pipeline_size * self.data_parallel_size
        if self.device_order and sorted(self.device_order) != list(range(min(places, len(self.device_order) + 1))):
            yield f"device_order does not hold each of 0 to {places - 1} once"


def _figures(part: msgspec.Struct, path: str, names: Iterable[str] = ()) -> Iterator[str]:
    for name in names or part.__struct_fields__:
        figure = getattr(part, name)
        if isinstance(figure, int) and not 0 <= figure <= LARGEST:
            yield f"{path}{name} is {figure}, outside 0 to 2**60"
