"""Schedules are read from users' files: our own text form, or torch's comma-separated one."""

from pathlib import Path

from autopipe.errors import DocumentError
from autopipe.schedules.action import Schedule, parse_schedule
from autopipe.schedules.check import check
from autopipe.schedules.comms import chain
from autopipe.schedules.csv import from_csv

LARGEST_BYTES = 256 * 1024**2


def read_schedule(path: str | Path) -> Schedule:
    """Return the schedule in a file, one line per rank, checked over a chain of stages; its name is the file's.

    A file with a comma in it is read as `csv.from_csv` does, any other as `action.parse_schedule` does.

    Raises
    ------
    DocumentError
        If the file cannot be read.
    ScheduleError
        If it holds no schedule, or one that cannot run.
    """
    file = Path(path)
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise DocumentError(f"{path} is larger than {LARGEST_BYTES} bytes: that is no schedule. Check the path.")
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DocumentError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}. Check the path."
        ) from None
    read = from_csv if "," in text else parse_schedule
    schedule = read(text, name=file.name)
    check(schedule, chain(schedule.stages))
    return schedule
