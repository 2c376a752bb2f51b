"""One end of the demo's link: torchrun starts it twice, and the first rank says what they measured."""

import msgspec
import torch.distributed as dist

from autopipe.errors import ProfileError
from autopipe.executor.launch import join_group
from autopipe.profiler.ranks import measure_links


def main() -> None:
    """Measure the link between the two ranks, both of this machine; print it as one JSON line on the first."""
    device = join_group()
    links = measure_links([0] * dist.get_world_size(), device)
    if not links:
        raise ProfileError(
            "the link between the two processes could not be told: larger messages did not take longer, in three "
            "attempts. Run the demo again on a quieter machine."
        )
    if dist.get_rank() == 0:
        print(msgspec.json.encode(links[0]).decode(), flush=True)


if __name__ == "__main__":
    main()
