"""A `Checkpoint` says what a folder of saved training state holds; the tensors themselves lie beside it."""

from autopipe.documents.files import Document


class Checkpoint(Document, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="autopipe.checkpoint"):
    """What was trained, how far, and as which pipeline.

    ``step`` is the user's own count and ``steps`` the pipeline's, from which, with ``seed``, its random operations
    draw. ``aliases`` are the further names of tied parameters and shared buffers, each with the name under which
    the tensor is saved, ``unread`` those parameters and buffers of the model that no stage reads, and which are not
    saved. ``optimizers`` are class names. ``bounds``, ``stage_ranks``, ``schedule``,
    ``micro_batches`` and ``replicas`` tell which pipeline wrote it; any other can read it.
    """

    step: int
    steps: int
    seed: int
    model: str
    graph_fingerprint: str
    bounds: tuple[int, ...]
    stage_ranks: tuple[int, ...]
    schedule: str
    micro_batches: int
    replicas: int
    aliases: dict[str, str]
    unread: tuple[str, ...]
    optimizers: tuple[str, ...]
    torch_version: str
