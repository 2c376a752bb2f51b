"""Judgement: from where every rank is, which one keeps the others waiting, and why."""

from collections.abc import Sequence

from autopipe.executor.whereabouts import Doing, Place

GO_ON = (
    "The ranks cannot go on together: start the run again from its last checkpoint (torchrun --max-restarts does it)."
)


def first_cause(places: Sequence[Place | None], names: Sequence[str]) -> str | None:
    """Return a sentence about the rank that holds up all others, or None if all of them may yet go on.

    Parameters
    ----------
    places : sequence of Place or None
        Where each rank is; None if it gave no answer.
    names : sequence of str
        What each is called.
    """
    known = [(place, name) for place, name in zip(places, names, strict=True) if place is not None]
    waiting = [(place, name) for place, name in known if place.doing is Doing.WAITING]
    for place, name in zip(places, names, strict=True):
        if place is None:
            return silent(name, waiting)
    for place, name in known:
        if place.doing is Doing.ENDED:
            return f"{name} has ended ({place.what}) while others wait for it"
    late = [(place, name) for place, name in known if place.age_s > place.limit_s]
    stuck = [(place, name) for place, name in late if place.doing is Doing.COMPUTING]
    idle = [(place, name) for place, name in late if place.doing is Doing.OUTSIDE and waiting]
    for place, name in sorted(stuck or idle, key=lambda one: -one[0].age_s)[:1]:
        usual = f", and its longest action took {_seconds(place.longest_s)}" if place.longest_s is not None else ""
        return f"{name} is stuck: it has been in {place.what} for {_seconds(place.age_s)}{usual}"
    if len(late) == len(waiting) == len(places):
        place, name = max(waiting, key=lambda one: one[0].age_s)
        return f"every rank waits for another, {name} the longest, {_seconds(place.age_s)} for {place.what}"
    return None


def silent(name: str, waiting: Sequence[tuple[Place, str]]) -> str:
    """Return the sentence about a rank that gives no answer, with what the one that waits longest waits for."""
    sentence = f"{name} gives no sign of life (killed, stopped, or its machine is gone)"
    if waiting:
        place, waiter = max(waiting, key=lambda one: one[0].age_s)
        sentence += f"; {waiter} waited {_seconds(place.age_s)} for {place.what}"
    return sentence


def lost(name: str, waiter: str, place: Place) -> str:
    """Return the sentence about a rank whose connection broke while another waited for it."""
    return (
        f"{name} has ended without a word (killed, out of memory, or left by os._exit); {waiter} was waiting for "
        f"{place.what}"
    )


def table(places: Sequence[Place | None], names: Sequence[str]) -> str:
    """Return what every rank was doing, one line each."""
    width = max(map(len, names))
    lines = [f"{'rank':{width}}  step  for      last action"]
    for place, name in zip(places, names, strict=True):
        if place is None:
            lines.append(f"{name:{width}}     -  -        no sign of life")
        else:
            doing = {Doing.WAITING: "waits for ", Doing.COMPUTING: "in ", Doing.ENDED: "ended: "}.get(place.doing, "")
            lines.append(f"{name:{width}}  {place.step:4}  {_seconds(place.age_s):8} {doing}{place.what}")
    return "\n".join(lines)


def _seconds(seconds: float | None) -> str:
    assert seconds is not None
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
