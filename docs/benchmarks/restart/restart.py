"""Kill a training run at random moments, under torchrun, and compare its losses with those of a run left alone."""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.kills import end, kill_at_random, losses_of, torchrun

SCRIPT = Path(__file__).parents[3] / "examples" / "resume.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8000, help="enough that the run outlives all kills")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds from a first step to the kill, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside, and torchrun with it"))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="autopipe-restart-") as name:
        calm, killed = Path(name) / "calm", Path(name) / "killed"
        killed.mkdir()
        words = ["--steps", str(options.steps), "--budget", "0.5"]
        subprocess.run([sys.executable, str(SCRIPT), "--folder", str(calm), *words], check=True)
        shutil.copy(calm / "plan.json", killed)
        agent = torchrun(SCRIPT, "--folder", str(killed), *words, ranks=options.ranks, restarts=options.kills)
        try:
            kills = kill_at_random(
                agent,
                killed,
                kills=options.kills,
                draw=random.Random(options.seed),
                longest_s=options.longest,
                every=3,
            )
            _, said = agent.communicate()
        finally:
            end(agent)
        if agent.returncode:
            sys.exit(f"torchrun ended with {agent.returncode}:\n{said[-3000:]}")
        losses, changed = losses_of(killed)
        wanted, _ = losses_of(calm)
    different = [step for step in wanted if losses.get(step) != wanted[step]]
    saving = sum(kill.while_saving for kill in kills)
    print(f"{len(kills)} kills, {saving} of them while a checkpoint was written; {len(wanted)} steps,")
    print(f"{len(different)} with another loss than undisturbed, {len(changed)} run again to another loss;")
    print(f"every whole checkpoint was read after each kill; {time.perf_counter() - start:.0f} s")
    sys.exit(bool(different or changed or len(losses) != len(wanted)))


if __name__ == "__main__":
    main()
