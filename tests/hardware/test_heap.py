"""Freed memory is kept where that can be arranged, and the user's own settings are left alone."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource
from autopipe.hardware.heap import keep_freed_memory
print(keep_freed_memory())
import torch
def fill():
    return [torch.ones(1 << 20) for _ in range(8)]
for _ in range(4):
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def outcome(**variables: str) -> tuple[str, int]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={**kept, **variables}
    )
    said, faults = done.stdout.split()
    return said, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap")
def test_what_was_freed_is_used_again_without_new_pages() -> None:
    said, faults = outcome()
    if said == "False":
        pytest.skip("another C library than glibc")
    assert faults < 1000  # forty blocks of 4 MiB are 40,960 pages
    assert outcome(MALLOC_ARENA_MAX="4")[0] == "False"
