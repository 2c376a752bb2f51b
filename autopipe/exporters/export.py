"""An `Export` is a plan in the words of another runtime, with what that runtime cannot say."""

from dataclasses import dataclass

from autopipe.documents.plan import Plan


@dataclass(frozen=True, kw_only=True)
class File:
    """A text file by the name it should have."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Export:
    """What another runtime is given.

    Attributes
    ----------
    files : tuple of File
        The first is the one to read.
    plan : Plan
        What the files say: the plan that was exported, or the best that the runtime can express.
    step_ns : int
        The step predicted for ``plan`` there: under the runtime's schedule, with our executor's costs.
    notes : tuple of str
        A sentence for everything that was lost.
    """

    files: tuple[File, ...]
    plan: Plan
    step_ns: int
    notes: tuple[str, ...] = ()
