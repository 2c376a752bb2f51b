"""Plan the training of a 70-billion-parameter Llama on 64 H100s, on a laptop.

    python examples/plan_70b.py
    autopipe report plan-70b.json -o plan-70b.html

The model is built without memory. Bytes are exact, times are estimates from the data sheets of the GPU and its links;
with `calibrate=`, a profile measured on one real GPU, they come nearer.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import autopipe
from autopipe.hardware.short_form import parse_cluster
from autopipe.units import format_bytes, format_share, format_time

LLAMA_3_70B = LlamaConfig(
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=8192,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="8x8:h100-sxm:net=50GB/s", help="8 machines of 8 GPUs and their network")
    parser.add_argument("--batch", type=int, default=512, help="sequences of one step, over all GPUs")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a sequence")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds to search")
    parser.add_argument("-o", "--output", default="plan-70b.json")
    options = parser.parse_args()

    with torch.device("meta"):
        model = LlamaForCausalLM(LLAMA_3_70B).to(torch.bfloat16)
        tokens = torch.zeros(2, options.length, dtype=torch.int64)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.1f} billion parameters")

    # granularity=80: a layer is a whole block, 80 of them, with what stands before and after.
    profile = autopipe.profile(
        model,
        {"input_ids": tokens, "labels": tokens},
        device="h100-sxm",
        micro_batches=(1, 2),
        granularity=LLAMA_3_70B.num_hidden_layers,
    )
    cluster = parse_cluster(options.cluster, profile)
    plan = autopipe.partition(profile, cluster=cluster, batch_size=options.batch, time_limit_s=options.time_limit)
    plan.save(options.output)

    print(
        f"{plan.data_parallel_size} replicas of {plan.pipeline_size} ranks with {plan.virtual_stages} stages each, "
        f"{plan.micro_batches} micro-batches of {plan.micro_batch_size}, schedule {plan.schedule}"
    )
    print(f"step {format_time(plan.step_ns)} (estimated), idle {format_share(plan.bubble_ratio)}")
    fullest = max(plan.ranks, key=lambda rank: rank.peak_bytes)
    print(f"fullest rank {format_bytes(fullest.peak_bytes)} of {format_bytes(fullest.memory_limit_bytes)}")
    print(plan.binding)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
