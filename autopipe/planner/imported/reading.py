"""A graph file is read in the format that the user names, with what it leaves open filled in."""

from collections.abc import Callable
from pathlib import Path

from autopipe.errors import DocumentError
from autopipe.planner.dag import Dag
from autopipe.planner.imported.bench import read_bench
from autopipe.planner.imported.pipedream import read_pipedream
from autopipe.planner.imported.table import read_table

MAXIMUM_FILE_BYTES = 512 * 1024**2
DEFAULT_BYTES_PER_S = 16e9

Reader = Callable[..., Dag]
FORMATS: dict[str, Reader] = {"bench": read_bench, "pipedream": read_pipedream, "csv": read_table}


def read_graph(
    path: str | Path,
    format: str,
    *,
    devices: int | None = None,
    memory_bytes: float | None = None,
    bytes_per_s: float | None = None,
) -> Dag:
    """Return the graph in the file at ``path``.

    Parameters
    ----------
    format : str
        One of `FORMATS`.
    devices, memory_bytes : optional
        Instead of what the file says; a file that does not say how many devices there are needs ``devices``.
    bytes_per_s : float, optional
        Of the links, for formats that give sizes but no times of transfers: 16 GB/s if it is not given.

    Raises
    ------
    DocumentError
        If the file cannot be read, or is not what its format says; the message names the place of the fault.
    InputError
        If nothing says how many devices there are, or the graph has a cycle.
    """
    try:
        size = Path(path).stat().st_size
        if size > MAXIMUM_FILE_BYTES:
            raise DocumentError(f"{path} holds {size} bytes; graphs hold at most {MAXIMUM_FILE_BYTES}. Check the path.")
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DocumentError(f"cannot read {path}: {reason}. Check the path.") from None
    dag = FORMATS[format](
        content,
        origin=str(path),
        devices=devices,
        memory_bytes=memory_bytes,
        bytes_per_s=bytes_per_s or DEFAULT_BYTES_PER_S,
    )
    _ = dag.order
    return dag
