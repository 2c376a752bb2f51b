"""What a command shows goes to one of two places: tables for people, or the document alone on stdout."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import click
from rich.console import Console, RenderableType
from rich.segment import Segment, Segments

from autopipe.documents.files import Document, encode, save
from autopipe.reporting.text import LITERAL, as_text, printable


class Screen:
    """Where a command writes.

    Tables go to stdout. With ``json`` the document has stdout for itself and the rest goes to stderr; with
    ``quiet`` there is no rest. Progress is drawn on stderr, and only on a terminal.
    """

    def __init__(self, *, json: bool, quiet: bool) -> None:
        self._json = json
        self._quiet = quiet
        self._people = Console(stderr=json, soft_wrap=False, **LITERAL)

    @property
    def width(self) -> int:
        """Columns for people."""
        return self._people.width

    def show(self, renderable: RenderableType = "") -> None:
        """Show something to people."""
        if self._quiet:
            return
        if self._people.is_terminal:
            self._people.print(Segments(self._drawn(renderable)))
        else:
            write(as_text(renderable, width=self.width), err=self._json)

    def _drawn(self, renderable: RenderableType) -> list[Segment]:
        return [part._replace(text=printable(part.text)) for part in self._people.render(renderable)]

    def say(self, line: str) -> None:
        """Show a line to people as it is, never broken: it may hold a path."""
        if not self._quiet:
            write(f"{line}\n", err=self._json)

    def deliver(self, document: Document, path: str | None) -> None:
        """Write ``document`` to ``path`` where one is given, and to stdout where the command said ``--json``."""
        if path is not None:
            save(document, path)
            self.say(f"\nWritten to {path}.")
        if self._json:
            click.echo(encode(document), nl=False)

    @contextmanager
    def foreign_code(self) -> Iterator[None]:
        """While the user's model runs, what it prints goes to stderr, so that stdout stays the command's own."""
        with redirect_stdout(sys.stderr):
            yield

    @contextmanager
    def live(self) -> Iterator[Callable[[RenderableType], None]]:
        """Show things to people one in place of the other, or on what is no terminal one below the other."""
        if not self._people.is_terminal:
            yield self.show
            return
        from rich.live import Live

        with Live(console=self._people, auto_refresh=False, vertical_overflow="visible") as live:
            yield lambda renderable: live.update(Segments(self._drawn(renderable)), refresh=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str, float], None]]:
        """Draw a bar on stderr where that is a terminal; the value is called with a detail and a share in [0, 1]."""
        if self._quiet or not sys.stderr.isatty():
            yield lambda detail, share: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        times = TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
        columns = (TextColumn("{task.description}"), BarColumn(), *times, TextColumn("{task.fields[detail]}"))
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=1.0, detail="")
            yield lambda detail, share: progress.update(task, completed=share, detail=detail)


def write(text: str, *, err: bool = False) -> None:
    """Write ``text`` to stdout or stderr in that stream's own encoding: click would write UTF-8 where it is ASCII."""
    stream = sys.stderr if err else sys.stdout
    stream.write(text)
    stream.flush()


def screen_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options ``--json`` and ``--quiet``."""
    function = click.option("--quiet", "-q", is_flag=True, help="No tables and no progress, errors only.")(function)
    json_help = "The document alone on stdout, the rest on stderr."
    return click.option("--json", "as_json", is_flag=True, help=json_help)(function)
