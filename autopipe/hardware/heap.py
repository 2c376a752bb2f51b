"""The heap of a process that computes on the CPU keeps what was freed, so that its pages need not come anew."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
_LARGEST_KEPT = 32 * 1024**2


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for what is allocated next; return whether that could be arranged.

    glibc gives the top of its heap back to the system whenever twice its largest freed block is free there. A rank
    with several micro-batches in flight frees and takes that much in every one of them, and each page that comes
    anew costs about 2 us: 5 % of a step of a small GPT, and half of its optimizer's time. Blocks above 32 MiB are
    always mapped anew, which glibc does not let be changed. Where a MALLOC_ variable or another allocator rules,
    nothing is done.

    References
    ----------
    mallopt(3), M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "LD_PRELOAD" in os.environ:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT))
