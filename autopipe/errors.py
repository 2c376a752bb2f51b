"""Every error that autopipe raises on purpose, in one tree.

::

    AutopipeError
    |-- InputError            an argument of a call or a command that cannot be used
    |-- DocumentError         a file or document that is not what it should be
    |   `-- MismatchError     a plan, profile or graph made for another model
    |-- CaptureError          a model that cannot be written down as a graph
    |-- ProfileError          a model that cannot be measured as asked
    |-- InfeasibleError       valid inputs for which no plan exists
    |-- ScheduleError         a schedule that is incomplete, out of order or deadlocks
    `-- StepError             a training step that failed on some rank

Each message says what happened, why it matters and what to do about it.
"""


class AutopipeError(Exception):
    """The root of the tree: catch this to catch all of them."""


class InputError(AutopipeError):
    """An argument of a call or a command cannot be used."""


class DocumentError(AutopipeError):
    """A file or document is not what it should be; the message names the path of the fault."""


class MismatchError(DocumentError):
    """A plan, profile or graph was made for another model; the message names the first difference."""


class CaptureError(AutopipeError):
    """A model cannot be written down as a graph; the message names module, file, line and reason."""


class ProfileError(AutopipeError):
    """A model cannot be measured as asked."""


class InfeasibleError(AutopipeError):
    """The inputs are valid and no plan exists; the message says what would fit."""


class ScheduleError(AutopipeError):
    """A schedule is incomplete, out of order or deadlocks; the message holds the grid with the fault marked."""


class StepError(AutopipeError):
    """A training step failed; the message names rank, stage, micro-batch and the first cause."""
