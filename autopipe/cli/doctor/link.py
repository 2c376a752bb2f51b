"""One of two processes that try a message between them; the first says how fast it went."""

import torch.distributed as dist

from autopipe.profiler.links import measure_link
from autopipe.units import format_time


def main() -> None:
    """Join the two processes, measure their link, and print it."""
    dist.init_process_group("gloo")
    link = measure_link(1 - dist.get_rank())
    if dist.get_rank() == 0:
        assert link.bytes_per_s is not None
        speed = link.bytes_per_s / 1e9
        print(f"gloo between two processes: {format_time(link.latency_ns)}, {speed:.2f} GB/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
