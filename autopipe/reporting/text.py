"""What rich would draw on a terminal is returned as plain text."""

import io

from rich.console import Console, RenderableType


def as_text(renderable: RenderableType, *, width: int = 80) -> str:
    """Return ``renderable`` drawn ``width`` columns wide, without colours and without spaces at line ends."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
