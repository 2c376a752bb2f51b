"""One eager run of a model is written down as an fx graph: open modules are entered, leaves are single calls."""

from dataclasses import dataclass

from torch import Tensor, fx, nn

from autopipe.recorder.example import Example
from autopipe.recorder.leaves import Leaves
from autopipe.recorder.ledger import TensorNames
from autopipe.recorder.methods import methods_intercepted
from autopipe.recorder.patches import intercepted
from autopipe.recorder.recorder import Recorder
from autopipe.recorder.refusal import Refusal


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run came to: the graph, and the modules that were made leaves with the reason.

    ``refused`` is set where the root itself cannot be written down; the graph is then of no use. ``refusing_method``
    is the method of the root that ran then, and ``rebinds``
    tells whether some open module rebound one of its attributes, which a first call may do once; ``written_back``
    names the buffers that open modules rebound, and ``values`` holds what each node made, where that was to be kept.
    """

    graph: fx.Graph
    demoted: dict[str, Refusal]
    refused: Refusal | None
    refusing_method: str | None
    rebinds: bool
    written_back: frozenset[str]
    values: dict[str, Tensor]


def run(
    model: nn.Module,
    example: Example,
    leaves: Leaves,
    *,
    names: TensorNames,
    compiling: bool = False,
    specialises: bool = False,
    written_back: frozenset[str] = frozenset(),
    methods: frozenset[str] = frozenset(),
    keep: bool = False,
) -> Run:
    """Run ``model`` on ``example`` once and return what happened.

    Parameters
    ----------
    leaves : Leaves
        Which modules are called and which are entered.
    names : mapping of int to str
        `tensor_names` of the model as the user gave it.
    compiling : bool
        Tell open modules that they are being compiled, so that they take their export-safe branches.
    specialises : bool
        Let the root read values of tensors, and write down a check that they stay what they were.
    written_back : frozenset of str
        The buffers that are rebound while the model runs, by name: whoever reads one is given a copy.
    methods : frozenset of str
        Methods of ``model`` to call whole.
    keep : bool
        Keep a copy of every tensor that a node makes, as it is at that moment.
    """
    recorder = Recorder(model, leaves, names=names, compiling=compiling, specialises=specialises)
    recorder.ledger.kept = {} if keep else None
    recorder.ledger.copied = written_back
    args, kwargs = recorder.bind(example)
    with intercepted(recorder), methods_intercepted(model, methods, recorder.call_method), recorder:
        output = model(*args, **kwargs)
    recorder.finish(output)
    return Run(
        graph=recorder.graph,
        demoted=recorder.demoted,
        refused=recorder.refused,
        refusing_method=recorder.refusing_method,
        rebinds=recorder.rebinds,
        written_back=frozenset(recorder.written_back),
        values=recorder.ledger.kept or {},
    )
