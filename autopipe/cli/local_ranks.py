"""A command starts the ranks of a pipeline as processes of this machine, and hears what they say."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

from autopipe.errors import StepError

LIMIT_S = 600.0


def run_ranks(
    module: str, argument: str, *, ranks: int, heard: Callable[[str], None], limit_s: float = LIMIT_S
) -> None:
    """Run ``python -m module argument`` on ``ranks`` processes under torchrun, one thread each, on the CPU.

    Parameters
    ----------
    heard : function of a line
        Called with every line of their output that begins like a JSON object.

    Raises
    ------
    StepError
        If they end with another exit code than 0, or have not ended after ``limit_s`` seconds; with what they wrote.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*launcher, "-m", module, argument], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        # Ranks that hang print nothing more, so the limit is kept by a timer and not by the reader.
        timer = threading.Timer(limit_s, process.terminate)
        timer.start()
        try:
            for line in process.stdout or ():
                if line.startswith("{"):
                    heard(line)
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
        finally:
            timer.cancel()
        if code != 0:
            errors.seek(0)
            raise StepError(f"the processes of the ranks ended with exit code {code}:\n{errors.read()[-4000:]}")
