"""What cannot be written down is named: the module, the file, the line, the Python expression, and why."""

import inspect
import linecache
import os
import re
import sys
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn

_OWN = os.path.dirname(os.path.abspath(__file__))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


class Unwritable(Exception):
    """Raised inside the recorder for a value or call that has no form in a graph; never reaches a user."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why something in the forward of module ``module`` cannot be written down, and where it stands."""

    module: str
    reason: str
    file: str
    line: int
    expression: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "a place without Python source"
        expression = f" in `{self.expression}`" if self.expression else ""
        return f"module {self.module} at {where}{expression}: {self.reason}"


def where(frame: FrameType | None) -> str:
    """Return file and line of a frame for a message."""
    return "a place without Python source" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def refusal(module: str, reason: str) -> Refusal:
    """Return a refusal that points at the innermost line of the user's code that is running now."""
    frame = user_frame()
    if frame is None:
        return Refusal(module=module, reason=reason, file="", line=0, expression="")
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Refusal(module=module, reason=reason, file=file, line=line, expression=_expression(frame))


def refusal_of(module: nn.Module, title: str, reason: str, *, attribute: str | None = None) -> Refusal:
    """Return a refusal that points at a module's forward, or at the line in its class that sets ``attribute``."""
    try:
        file = inspect.getsourcefile(type(module)) or ""
        lines, first = inspect.getsourcelines(type(module).forward if attribute is None else type(module))
    except (OSError, TypeError):
        return Refusal(module=title, reason=reason, file="", line=0, expression="")
    found = 0
    if attribute is not None:
        setting = re.compile(rf"\.{re.escape(attribute)}\b[^=]*(?<![=!<>])=(?!=)")
        places = [number for number, line in enumerate(lines) if setting.search(line)]
        # The last one: the first is usually where __init__ sets it up.
        found = places[-1] if places else 0
    return Refusal(module=title, reason=reason, file=file, line=first + found, expression=lines[found].strip())


def user_frame() -> FrameType | None:
    """Return the innermost frame of the user's code that is running now, None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if not file.startswith((_OWN + os.sep, _TORCH + os.sep)) and not file.startswith("<"):
            return frame
        frame = frame.f_back
    return None


def calling_frame() -> FrameType | None:
    """Return the innermost frame that is not the recorder's: the user's, or one of torch's own Python code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(_OWN + os.sep):
        frame = frame.f_back
    return frame


def _expression(frame: FrameType) -> str:
    """Return the source of the expression that ``frame`` is evaluating, or of its line."""
    code, index = frame.f_code, frame.f_lasti // 2
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    for position, (begin, end, left, right) in enumerate(code.co_positions()):
        if position == index and None not in (begin, left, right) and begin == end:
            text = linecache.getline(code.co_filename, begin or 0).encode()[left:right].decode(errors="replace")
            return text.strip() or line
    return line
