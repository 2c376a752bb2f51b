"""Runs many mutated documents and command lines through the command line, in worker processes that may be ended.

python docs/benchmarks/fuzz/fuzz.py [--cases 20000] [--first 0] [--workers 1] [--limit-s 20]
"""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.fuzz import Corpus, fuzz, make_corpus

MEMORY_BYTES = 6 * 2**30


def work(seeds: range, corpus: Corpus, now: Any, faults: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory(prefix="autopipe-fuzz-") as folder:

        def started(seed: int) -> None:
            now.value = seed

        findings = fuzz(seeds, corpus, Path(folder), started=started)
        faults.value += len(findings)
        now.value = seeds.stop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=20.0, help="a case that takes longer hangs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autopipe-corpus-") as folder:
        corpus = make_corpus(Path(folder))
    now, faults = multiprocessing.Value("q", arguments.first), multiprocessing.Value("q", 0)
    stop, hangs, start, begin = arguments.first + arguments.cases, [], time.time(), arguments.first
    while begin < stop:
        now.value = begin
        worker = multiprocessing.Process(target=work, args=(range(begin, stop), corpus, now, faults))
        worker.start()
        seed, since = begin, time.time()
        while worker.is_alive():
            worker.join(0.5)
            if now.value != seed:
                seed, since = now.value, time.time()
            elif worker.is_alive() and time.time() - since > arguments.limit_s:
                worker.kill()
                worker.join()
        begin = now.value
        if begin < stop:
            hangs.append(begin)
            print(f"case {begin} hung, or ended its process ({worker.exitcode})", flush=True)
            begin += 1
    seconds = time.time() - start
    print(f"{arguments.cases} cases in {seconds:.0f} s: {faults.value} with a fault, {len(hangs)} hung {hangs}")


if __name__ == "__main__":
    main()
