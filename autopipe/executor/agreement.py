"""Ranks agree before the first step: on the plan, the model, and the seed of the first rank."""

import msgspec

from autopipe.documents.files import fingerprint
from autopipe.documents.graph import Graph
from autopipe.errors import MismatchError
from autopipe.executor.layout import Layout
from autopipe.transport.endpoint import Endpoint


def agree_on(layout: Layout, graph: Graph, seed: int, endpoint: Endpoint) -> int:
    """Return the first rank's seed.

    Raises
    ------
    MismatchError
        If ranks hold different plans or models.
    """
    mine = {"layout": fingerprint(dict(vars(layout))), "model": graph.fingerprint, "seed": seed}
    notes = [msgspec.json.decode(note) for note in endpoint.gather_notes(msgspec.json.encode(mine))]
    for what in ("layout", "model"):
        for rank, note in enumerate(notes):
            if note[what] != notes[0][what]:
                raise MismatchError(
                    f"rank {rank} starts with another {what} than rank 0 ({note[what]} against {notes[0][what]}): "
                    "messages would not fit. Give every rank the same plan file, model and versions."
                )
    return int(notes[0]["seed"])
