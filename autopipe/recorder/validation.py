"""A value that is read only to decide whether to raise or to warn shapes no graph: such lines are told apart."""

import ast
import linecache
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

_WARNINGS = frozenset(["warn", "warning", "warning_once", "warn_once", "info", "debug", "print", "error"])
_PURE = frozenset(["abs", "all", "any", "bool", "float", "int", "len", "max", "min", "round", "sum"])
_LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom, ast.Await)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """A condition that only raises or warns.

    ``is_whole`` tells that the value read is, or is the opposite of, the whole condition of an ``assert`` or of an
    ``if`` that raises: as long as it stays as it was, nothing is raised.
    """

    is_whole: bool


def validation_of(frame: FrameType) -> Validation | None:
    """Return the validation for which ``frame`` reads a value now, None if the value may decide more than that.

    The value must be used for the condition of an ``assert`` or ``if`` alone (no ``:=`` in it, no call of unknown
    functions with it), and one branch of the ``if`` must end in ``raise`` or hold nothing but warnings; the other is
    what every valid input takes.
    """
    place = _position(frame)
    if place is None:
        return None
    file = frame.f_code.co_filename
    for statement, raises in _validations(file):
        test = statement.test
        # Python 3.11 places the jump on a condition at its statement, unless the condition is a comparison.
        is_jump = place == _place(statement)
        if is_jump or (_place(test)[0] <= place[0] and place[1] <= _place(test)[1]):
            if not is_jump and _escapes(test, place):
                return None
            inner = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
            is_whole = place in (_place(test), _place(inner)) or (is_jump and not isinstance(inner, ast.BoolOp))
            return Validation(is_whole=raises and is_whole)
    return None


def _escapes(test: ast.expr, place: "_Place") -> bool:
    """Return whether the value read at ``place`` may go elsewhere than into the condition ``test``."""
    for part in ast.walk(test):
        if isinstance(part, ast.NamedExpr):
            return True
        if isinstance(part, ast.Call):
            given = (*part.args, *(keyword.value for keyword in part.keywords))
            is_given = any(_place(item)[0] <= place[0] and place[1] <= _place(item)[1] for item in given)
            if is_given and getattr(part.func, "id", "") not in _PURE:
                return True
    return False


_Place = tuple[tuple[int, int], tuple[int, int]]


def _position(frame: FrameType) -> _Place | None:
    """Return where the expression that ``frame`` evaluates begins and ends: (line, column) each."""
    for index, (begin, end, left, right) in enumerate(frame.f_code.co_positions()):
        if index == frame.f_lasti // 2:
            if begin is None or end is None or left is None or right is None:
                return None
            return (begin, left), (end, right)
    return None


def _place(node: ast.expr | ast.stmt) -> _Place:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


@lru_cache(maxsize=64)
def _validations(file: str) -> tuple[tuple[ast.If | ast.Assert, bool], ...]:
    """Return the statements of a source file whose condition only decides to raise or to warn, and if they raise."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    found: list[tuple[ast.If | ast.Assert, bool]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append((node, True))
        elif isinstance(node, ast.If):
            raises = _raises(node.body) or _raises(node.orelse)
            if raises or (_warns(node.body) and not node.orelse):
                found.append((node, raises))
    return tuple(found)


def _raises(body: Sequence[ast.stmt]) -> bool:
    if not body or not (isinstance(body[-1], ast.Raise) or _asserts_false(body[-1])):
        return False
    return not any(isinstance(part, _LEAVING) for statement in body for part in ast.walk(statement))


def _asserts_false(statement: ast.stmt) -> bool:
    """Return whether a statement is ``assert False`` or ``torch._assert(False, ...)``, which always raise."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and call.args and getattr(call.func, "attr", "") == "_assert":
        test: ast.expr | None = call.args[0]
    else:
        test = statement.test if isinstance(statement, ast.Assert) else None
    return isinstance(test, ast.Constant) and not test.value


def _warns(body: Sequence[ast.stmt]) -> bool:
    return all(_is_warning(statement) for statement in body)


def _is_warning(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    function = statement.value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _WARNINGS
