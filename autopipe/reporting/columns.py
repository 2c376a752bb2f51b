"""Tables share one form: a narrow frame, figures to the right, and one unit for each column."""

import re

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autopipe.units import Scale, byte_scale, time_scale


def plain_table(title: str) -> Table:
    """Return an empty table without side borders, so that 80 columns go a long way."""
    return Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False)


def add_figures(table: Table, name: str, unit: str = "") -> None:
    """Add a column of figures to ``table``: its unit under its name, its figures to the right."""
    table.add_column(f"{name}\n{unit}" if unit else name, justify="right", no_wrap=True)


def add_words(table: Table, name: str) -> None:
    """Add a column of words to ``table``: these wrap where the width does not do, figures never."""
    table.add_column(name, justify="left", overflow="fold")


class Names:
    """Dotted names that break after a dot or a space where the width does not do, inside a word only if it must."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces = re.findall(r"[^. ]*[. ]+|[^. ]+", text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width of the longest piece, and of all in one line."""
        longest = max((cell_len(piece.rstrip()) for piece in self._pieces), default=0)
        return Measurement(longest, cell_len(self._text)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines that fit the width."""
        lines = [""]
        for piece in self._pieces:
            if lines[-1] and cell_len(lines[-1]) + cell_len(piece.rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += piece
        yield Text("\n".join(line.rstrip() for line in lines), overflow="fold")


def shares_that_add_up(parts: tuple[int, ...]) -> tuple[float, ...]:
    """Return the share of each part in their sum, rounded to a tenth of a per cent so that they add up to one.

    The parts that lose most by rounding down are rounded up (largest remainder); all zero for an empty sum.
    """
    total = sum(parts)
    return tuple(tenths / 1000 for tenths in _rounded(parts, 1000, total)) if total else (0.0,) * len(parts)


def figures_that_add_up(parts: tuple[int, ...], scale: Scale) -> tuple[str, ...]:
    """Return the parts and, behind them, their sum in one unit, rounded to two decimals so that they add up as printed.

    The sum is rounded to nearest; of the parts those are rounded up that lose most by rounding down.
    """
    hundredths = _rounded(parts, 100, scale.size)
    return tuple(f"{figure / 100:.2f}" for figure in (*hundredths, sum(hundredths)))


def _rounded(parts: tuple[int, ...], times: int, over: int) -> list[int]:
    """Return ``times`` each part ``over`` that, as whole numbers whose sum is that of the parts, rounded."""
    found = [times * part // over for part in parts]
    missing = (2 * times * sum(parts) + over) // (2 * over) - sum(found)
    by_loss = sorted(range(len(parts)), key=lambda index: -(times * parts[index] % over))
    for index in by_loss[:missing]:
        found[index] += 1
    return found


def times_scale(*columns: tuple[int, ...]) -> Scale:
    """Return the one unit for all these columns of nanoseconds."""
    return time_scale(max((value for column in columns for value in column), default=0))


def bytes_scale(*columns: tuple[int, ...]) -> Scale:
    """Return the one unit for all these columns of bytes."""
    return byte_scale(max((value for column in columns for value in column), default=0))
