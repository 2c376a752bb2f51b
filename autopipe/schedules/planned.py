"""The schedule of a plan: by its name and sizes, or as the plan itself spells it out."""

from autopipe.documents.plan import Plan
from autopipe.schedules.action import Schedule, from_lines
from autopipe.schedules.named import make


def planned_schedule(plan: Plan) -> Schedule:
    """Return the schedule of ``plan`` for the number of micro-batches that it was planned for.

    Raises
    ------
    InputError, ScheduleError
        If its name and sizes, or its actions, make no schedule.
    """
    if plan.actions:
        return from_lines(plan.actions, name=plan.schedule)
    return make(
        plan.schedule,
        stages=plan.pipeline_size,
        micro_batches=plan.micro_batches,
        virtual=plan.virtual_stages,
        depth=plan.depth,
    )
