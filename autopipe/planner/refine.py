"""A layer that alone sets the pace of a plan is opened, and the model measured and planned anew."""

from collections.abc import Callable, Sequence

from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile

_ROUNDS = 3
_TOLERANCE = 1.1


def limiting_layer(plan: Plan) -> str | None:
    """Return the layer that limits the balance of ``plan``, None if no single one does.

    It does where the slowest stage holds nothing else, and takes over a tenth longer than the mean stage.
    """
    times = [stage.forward_ns + stage.backward_ns for stage in plan.stages]
    slowest = max(plan.stages, key=lambda stage: stage.forward_ns + stage.backward_ns)
    if len(plan.stages) < 2 or len(slowest.layers) != 1 or max(times) * len(times) <= _TOLERANCE * sum(times):
        return None
    return slowest.layers[0]


def refined(measure: Callable[[Sequence[str]], Profile], plan: Callable[[Profile], Plan]) -> Plan:
    """Return the best plan of a model whose limiting layers are opened one after the other.

    Parameters
    ----------
    measure : callable
        Returns the profile of the model recorded with the modules at these paths opened.
    plan : callable
        Returns the best plan for a profile.

    Notes
    -----
    It ends where no layer limits, where opening one gave no more layers (it is whole for another reason than its
    small cost), or where the plan did not become faster; and after three rounds.
    """
    profile = measure(())
    best = plan(profile)
    opened: tuple[str, ...] = ()
    for _ in range(_ROUNDS):
        name = limiting_layer(best)
        if name is None:
            break
        opened = (*opened, name.partition("@")[0])
        finer = measure(opened)
        if len(finer.layers) <= len(profile.layers):
            break
        candidate = plan(finer)
        if candidate.step_ns >= best.step_ns:
            break
        profile, best = finer, candidate
    return best
