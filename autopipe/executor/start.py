"""The ranks of a process start: it joins the others as one rank, or makes all ranks as threads of its own."""

import contextlib
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import fx

from autopipe.documents.graph import Graph
from autopipe.executor.agreement import agree_on
from autopipe.executor.build import Recipe, build_rank, over_same_parameters, rank_pairs, tensors_of_ranks
from autopipe.executor.deadlines import Deadlines
from autopipe.executor.launch import ThreadRanks, local_devices
from autopipe.executor.layout import Layout, check_size, rank_names
from autopipe.executor.ranks import Ranks
from autopipe.executor.watchdog import Watchdog
from autopipe.executor.whereabouts import Whereabouts
from autopipe.stages.materialise import Materialise
from autopipe.transport.distributed import DistributedEndpoint


def start_process(
    module: fx.GraphModule,
    graph: Graph,
    layout: Layout,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device,
    watchdog: Watchdog,
    materialise: Materialise | None,
) -> tuple[Ranks, int]:
    """Return this process's rank, once all ranks agree, and the first rank's seed.

    Raises
    ------
    InputError
        If there are not as many processes as the layout needs.
    MismatchError
        If ranks hold different plans or models.
    """
    check_size(layout, dist.get_world_size())
    with watchdog.watching("the other ranks, to build the pipeline"):
        pairs = rank_pairs(graph, layout)
        endpoint = DistributedEndpoint(device, pairs, replicas=layout.replicas, order=layout.device_order)
        watchdog.attach(endpoint, rank_names(layout, endpoint))
        seed = agree_on(layout, graph, seed, endpoint)
    if materialise is not None:
        materialise(tensors_of_ranks(graph, layout, {endpoint.rank: device}))
    # A process of one rank has its generator for itself.
    alone = contextlib.nullcontext()
    rank = build_rank(module, graph, layout, endpoint, recipe, draw_lock=alone, whereabouts=watchdog.whereabouts)
    return Ranks(layout, (rank,), watchdog=watchdog), seed


def start_threads(
    module: fx.GraphModule,
    graph: Graph,
    layout: Layout,
    recipe: Recipe,
    *,
    devices: Sequence[str | torch.device] | None,
    ranks: int | None,
    deadlines: Deadlines,
    materialise: Materialise | None,
) -> Ranks:
    """Return all ranks, each a thread of this process; replicas share the memory of parameters.

    Raises
    ------
    InputError
        If there are not as many devices as the layout needs.
    """
    local = local_devices(devices, ranks)
    check_size(layout, len(local))
    local = tuple(local[number] for number in layout.device_order) or local
    if materialise is not None:
        materialise(tensors_of_ranks(graph, layout, dict(enumerate(local[:: layout.replicas]))))
    copies = [module, *(over_same_parameters(module) for _ in range(1, layout.replicas))]
    threads = ThreadRanks(local, replicas=layout.replicas)
    draw_lock = threading.RLock()
    built = tuple(
        build_rank(
            copies[endpoint.replica],
            graph,
            layout,
            endpoint,
            recipe,
            draw_lock=draw_lock,
            whereabouts=Whereabouts(deadlines=deadlines),
        )
        for endpoint in threads.endpoints
    )
    return Ranks(layout, built, threads=threads)
