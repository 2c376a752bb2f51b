"""What rich would draw on a terminal is returned as plain text."""

import io
import re
from typing import Any

from rich.console import Console, RenderableType

# Control characters but for the end of a line, and those that turn the direction of writing.
_OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

# Names of models and layers may look like the markup of rich; they are text.
LITERAL: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}


def as_text(renderable: RenderableType, *, width: int = 80) -> str:
    """Return ``renderable`` drawn ``width`` columns wide, without colours and without spaces at line ends."""
    console = Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False, **LITERAL
    )
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(printable(line).rstrip() for line in capture.get().split("\n")).rstrip("\n") + "\n"


def printable(text: str) -> str:
    """Return ``text`` with what a terminal would obey, rather than show, written out as an escape."""
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
