"""The memory of four schedules on two published models, against the peaks measured there.

Zero Bubble Pipeline Parallelism, arXiv 2401.10241, Tables 3, 4 and 9: the first and the last stage have one
layer fewer; 16 bytes a parameter, and per layer and micro-batch the activations of Korthikanti et al.,
arXiv 2205.05198, sbh (34 + 5as/h).
"""

import pytest

from autopipe.costs.stages import EdgeCost, StageCost
from autopipe.schedules.comms import chain
from autopipe.schedules.named import make
from tests.peaks import rank_peaks

SEQUENCE = 1024
MODELS = {
    "1.5B": {"layers": 22, "hidden": 2304, "heads": 24, "ranks": 8, "size": 6},
    "14.6B": {"layers": 46, "hidden": 5120, "heads": 40, "ranks": 16, "size": 1},
}
PUBLISHED_GB = {
    ("1.5B", "1f1b"): 30,
    ("1.5B", "interleaved"): 40,
    ("1.5B", "zb-h1"): 32,
    ("1.5B", "zb-h2"): 59,
    ("14.6B", "1f1b"): 32,
    ("14.6B", "interleaved"): 39,
    ("14.6B", "zb-h1"): 33,
    ("14.6B", "zb-h2"): 51,
}


@pytest.mark.parametrize(("model", "schedule"), PUBLISHED_GB)
def test_the_peak_is_within_five_per_cent_of_the_published_one(model: str, schedule: str) -> None:
    layers, hidden, heads, ranks, size = MODELS[model].values()
    virtual = 3 if schedule == "interleaved" else 1
    stages = ranks * virtual
    each = (layers + 2) // stages
    counts = [each - (stage in (0, stages - 1)) for stage in range(stages)]
    assert sum(counts) == layers
    saved = SEQUENCE * size * (34 * hidden + 5 * heads * SEQUENCE)
    costs = [
        StageCost(forward_ns=1, backward_ns=2, state_bytes=16 * 12 * hidden**2 * count, saved_bytes=saved * count)
        for count in counts
    ]
    edges = [EdgeCost(edge=edge) for edge in chain(stages)]
    for micro_batches in (3 * ranks, 8 * ranks):
        made = make(schedule, stages=ranks, micro_batches=micro_batches, virtual=virtual)
        peak_gb = max(rank_peaks(made, costs, edges)) / 1e9
        assert peak_gb == pytest.approx(PUBLISHED_GB[model, schedule], rel=0.05)
