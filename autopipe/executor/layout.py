"""The layout of a pipeline: which rank holds which stage, and the schedule that they run."""

from dataclasses import dataclass

from autopipe.costs.planned import planned_edges, planned_stages
from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.documents.conditions import Conditions
from autopipe.documents.plan import Plan
from autopipe.errors import InputError
from autopipe.schedules.action import Schedule, from_lines, peak_in_flight
from autopipe.schedules.forward_only import forward_only
from autopipe.schedules.named import make
from autopipe.simulator.conditions import IDEAL
from autopipe.simulator.fit import fit
from autopipe.transport.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which layers form which stage on which rank, and the schedule that they run.

    ``actions``, one line per rank, spell out a schedule that no name says, for ``micro_batches``; for another
    number one is fitted to ``stage_costs``, ``edge_costs`` and ``conditions`` that holds no more in flight.
    ``recompute`` names the layers that are computed again in the backward. Rank r of replica k is process, or device,
    ``device_order[r * replicas + k]``; they are taken in turn where it is ().
    """

    bounds: tuple[int, ...]
    stage_ranks: tuple[int, ...]
    schedule: str
    micro_batches: int
    virtual_stages: int = 1
    depth: int = 0
    actions: tuple[str, ...] = ()
    stage_costs: tuple[StageCost, ...] = ()
    edge_costs: tuple[EdgeCost, ...] = ()
    conditions: Conditions = IDEAL
    recompute: tuple[str, ...] = ()
    replicas: int = 1
    device_order: tuple[int, ...] = ()

    @classmethod
    def planned(cls, plan: Plan) -> "Layout":
        """Return the layout of ``plan``."""
        return cls(
            bounds=(0, *(stage.end for stage in plan.stages)),
            stage_ranks=plan.stage_ranks,
            schedule=plan.schedule,
            micro_batches=plan.micro_batches,
            virtual_stages=plan.virtual_stages,
            depth=plan.depth,
            actions=plan.actions,
            stage_costs=planned_stages(plan),
            edge_costs=planned_edges(plan),
            conditions=plan.conditions or IDEAL,
            replicas=plan.data_parallel_size,
            device_order=plan.device_order,
            recompute=tuple(name for stage in plan.stages for name in stage.recompute),
        )

    @property
    def ranks(self) -> int:
        """The number of ranks, p."""
        return max(self.stage_ranks) + 1

    def training(self, micro_batches: int) -> Schedule:
        """Return the schedule of a training step.

        Raises
        ------
        InputError
            If the schedule puts stages on other ranks than this layout.
        """
        if self.actions:
            schedule = self._spelt_out(micro_batches)
        else:
            schedule = make(
                self.schedule,
                stages=self.ranks,
                micro_batches=micro_batches,
                virtual=self.virtual_stages,
                depth=self.depth,
            )
        if schedule.stage_ranks != self.stage_ranks:
            raise InputError(
                f"schedule {self.schedule} puts its stages on ranks {schedule.stage_ranks}, and the plan on "
                f"{self.stage_ranks}: take the plan's own schedule, or plan again."
            )
        return schedule

    def evaluation(self, micro_batches: int) -> Schedule:
        """Return the schedule of a forward-only step."""
        return forward_only(self.stage_ranks, micro_batches)

    def _spelt_out(self, micro_batches: int) -> Schedule:
        schedule = from_lines(self.actions, name=self.schedule)
        if micro_batches == schedule.micro_batches:
            return schedule
        if not self.stage_costs:
            raise InputError(
                f"the schedule is spelt out for {schedule.micro_batches} micro-batches and the batch makes "
                f"{micro_batches}: pass batches of the planned size, or a plan that has the times of its stages."
            )
        limits = tuple(max(peak_in_flight(row), self.stage_ranks.count(r)) for r, row in enumerate(schedule.actions))
        return fit(
            self.stage_costs,
            self.edge_costs,
            self.stage_ranks,
            micro_batches,
            limits=limits,
            conditions=self.conditions,
        )


def check_size(layout: Layout, running: int) -> None:
    """Return if ``running`` processes or threads are what a layout needs.

    Raises
    ------
    InputError
        If there are more or fewer.
    """
    needed = layout.ranks * layout.replicas
    if needed != running:
        of = f", {layout.ranks} for each of {layout.replicas} replicas," if layout.replicas > 1 else ""
        raise InputError(
            f"the plan has {needed} ranks{of} and {running} are running: start {needed} "
            f"(torchrun --nproc-per-node {needed}), or plan again with --gpus {running}."
        )


def rank_names(layout: Layout, endpoint: Endpoint) -> tuple[str, ...]:
    """Return what each process, or thread, is called in sentences."""
    names = [""] * (layout.ranks * layout.replicas)
    for rank in range(layout.ranks):
        stages = [str(stage) for stage, owner in enumerate(layout.stage_ranks) if owner == rank]
        held = f"stage {stages[0]}" if len(stages) == 1 else f"stages {' and '.join(stages)}"
        for replica in range(layout.replicas):
            of = f" of replica {replica}" if layout.replicas > 1 else ""
            position = rank * layout.replicas + replica
            place = position if endpoint.shares_memory or not layout.device_order else layout.device_order[position]
            names[place] = f"rank {rank}{of} ({held})"
    return tuple(names)
