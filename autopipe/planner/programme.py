"""The integer programme of a plan is written to a file, for other solvers and other eyes."""

from pathlib import Path

from autopipe.documents.arguments import typed
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.hardware.cluster import Cluster
from autopipe.hardware.device_grid import DeviceGrid
from autopipe.planner.bounds import everything
from autopipe.planner.branch import Branch, Space
from autopipe.planner.cells import Cell, Tables
from autopipe.planner.ilp import write_lp
from autopipe.planner.kind import Kind
from autopipe.planner.request import Request, with_profiled


@typed
def write_programme(profile: Profile, cluster: Cluster, request: Request, plan: Plan, path: str | Path) -> None:
    """Write the programme of the branch that ``plan`` is from, with all intervals that fit, as ``.lp`` or ``.mps``.

    Raises
    ------
    InputError
        If the file ends otherwise.
    """
    cluster = with_profiled(cluster, profile)
    space = Space(
        profile=profile,
        cluster=cluster,
        request=request,
        wishes=request.wishes(profile),
        tables=Tables(profile, request),
    )
    grid = DeviceGrid.of(cluster, plan.pipeline_size, plan.data_parallel_size, plan.device_order)
    cell = Cell(grid=grid, micro_batch_size=plan.micro_batch_size, micro_batches=plan.micro_batches, bound_ns=0)
    schedule = "1f1b" if plan.actions and plan.virtual_stages == 1 else plan.schedule
    kind = Kind(
        schedule="interleaved" if plan.actions and plan.virtual_stages > 1 else schedule, virtual=plan.virtual_stages
    )
    problem = space.problem(Branch(cell=cell, kind=kind, bound_ns=0))
    write_lp(problem, everything(problem), path)
