"""Plan a 96-block GPT-3 on 64 GPUs in machines of eight: every choice searched together."""

import os
import time

from autopipe.documents.profile import Cost, Profile, ProfiledLayer, ProfiledValue, Source
from autopipe.hardware.cluster import Cluster, Link
from autopipe.planner import Request, plan

GIB = 1024**3
HIDDEN, SEQUENCE, HEADS, VOCABULARY, BLOCKS = 12288, 2048, 96, 51200, 96
RATE = 312e12 * 0.5
BANDWIDTH = 1.5e12
SIZES = (1, 2, 4)
NVLINK = Link(latency_ns=5_000, bytes_per_s=250 * 10**9)
NETWORK = Link(latency_ns=15_000, bytes_per_s=25 * 10**9)
STATE = 8


def gpt3() -> Profile:
    """Blocks of 24 h^2 + 4 s h FLOPs a token, at half the peak of an A100; bfloat16 AdamW: 8 bytes a parameter."""
    tokens = [size * SEQUENCE for size in SIZES]
    block_flops = [24 * HIDDEN**2 * t + 4 * SEQUENCE * HIDDEN * t for t in tokens]
    # Korthikanti et al., arXiv 2205.05198: sbh (34 + 5 as/h) bytes saved.
    saved = [t * HIDDEN * 34 + 5 * HEADS * SEQUENCE * t for t in tokens]
    head_flops = [2 * HIDDEN * VOCABULARY * t for t in tokens]
    block = 12 * HIDDEN**2 * 2
    table = VOCABULARY * HIDDEN * 2
    layers = [_layer("embedding", [0.01 * f for f in block_flops], [0] * 3, table)]
    layers += [_layer(f"blocks.{index}", block_flops, saved, block) for index in range(BLOCKS)]
    layers.append(_layer("head", head_flops, [t * (HIDDEN + VOCABULARY) * 2 for t in tokens], table))
    values = tuple(
        ProfiledValue(
            name=f"hidden{index}",
            producer=index,
            consumers=(index + 1,),
            requires_grad=True,
            bytes=tuple(t * HIDDEN * 2 for t in tokens),
        )
        for index in range(len(layers) - 1)
    )
    losses = tuple(
        Cost(forward_ns=0, backward_ns=0, saved_bytes=4 * t * VOCABULARY, transient_bytes=0, source=Source.ROOFLINE)
        for t in tokens
    )
    return Profile(
        model="gpt-3",
        device="A100-80",
        torch="-",
        dtype="bfloat16",
        optimizer="adamw",
        loss_name="cross_entropy",
        clock="-",
        micro_batches=SIZES,
        layers=tuple(layers),
        values=values,
        loss=losses,
        graph_fingerprint="gpt-3",
    )


def _layer(name: str, flops: list[float], saved: list[int], parameter_bytes: int) -> ProfiledLayer:
    times = [round(f / RATE * 1e9) for f in flops]
    return ProfiledLayer(
        name=name,
        parameter_bytes=parameter_bytes,
        gradient_bytes=parameter_bytes,
        optimizer_bytes=parameter_bytes // 2 * (STATE - 4),
        buffer_bytes=0,
        optimizer_ns=round(parameter_bytes / 2 * (STATE + 4) / BANDWIDTH * 1e9),
        costs=tuple(
            Cost(
                forward_ns=time_,
                backward_ns=2 * time_,
                input_grad_ns=time_,
                weight_grad_ns=time_,
                recompute_ns=time_,
                saved_bytes=held,
                saved_recompute_bytes=0,
                transient_bytes=held // 8,
                source=Source.ROOFLINE,
            )
            for time_, held in zip(times, saved, strict=True)
        ),
    )


def main() -> None:
    profile = gpt3()
    cluster = Cluster.uniform(64, memory_bytes=80 * GIB, gpus_per_node=8, intra_node=NVLINK, inter_node=NETWORK)
    warm_up = Cluster.uniform(98)
    plan(profile, warm_up, Request(batch_size=2, schedule="1f1b", stages=98))  # loads PuLP and HiGHS
    before = os.getloadavg()[0]
    start, worked = time.perf_counter(), time.process_time()
    found = plan(profile, cluster, Request(batch_size=1536, time_limit_s=60))
    seconds, worked = time.perf_counter() - start, time.process_time() - worked
    proof = found.certificate
    recomputed = sum(len(stage.recompute) for stage in found.stages)
    print(
        f"{seconds:.1f} s, {worked:.1f} CPU s: p {found.pipeline_size}, d {found.data_parallel_size}, "
        f"{found.micro_batches} micro-batches of {found.micro_batch_size}, "
        f"{found.schedule} v {found.virtual_stages}, {recomputed} layers recompute; step "
        f"{found.step_ns / 1e9:.3f} s, {proof.status}, solver gap {proof.solver_gap:.1e}, step gap {proof.gap:.2%}; "
        f"load average {before:.2f}"
    )
    for other in found.alternatives:
        print(
            other.pipeline_size,
            other.data_parallel_size,
            other.micro_batch_size,
            other.schedule,
            other.virtual_stages,
            other.step_ns and other.step_ns / 1e9,
            other.reason,
        )


if __name__ == "__main__":
    main()
