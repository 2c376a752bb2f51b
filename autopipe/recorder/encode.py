"""A node's arguments and target have a plain-JSON form, both ways; decoding never imports, evaluates or calls."""

import keyword
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from autopipe.documents.graph import Node
from autopipe.errors import CaptureError, DocumentError
from autopipe.recorder import glue
from autopipe.recorder.foreign import resolve_autograd_function
from autopipe.recorder.functions import class_name, function_name, is_method, resolve_class, resolve_function
from autopipe.recorder.objects import resolve_object_class

_DEEPEST = 64
_LARGEST = 2**63


def encode_node(node: fx.Node) -> Node:
    """Return the document form of an fx node.

    Raises
    ------
    CaptureError
        If it calls or holds something that a document cannot name.
    """
    return Node(
        name=node.name,
        op=node.op,
        target=_encode_target(node),
        arguments=[encode(argument) for argument in node.args] or (),
        keywords={name: encode(argument) for name, argument in node.kwargs.items()},
    )


def encode(value: Any) -> Any:
    """Return the plain-JSON form of one argument of an fx node.

    Numbers, strings, booleans and None stand for themselves and a JSON array is a list; everything else is
    an object with one key that says what it is, for example ``{"node": "relu_1"}``.

    Raises
    ------
    CaptureError
        If the value has no such form.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value < _LARGEST else {"int": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    for tag, kind, form in _FORMS:
        if isinstance(value, kind):
            return {tag: form(value)}
    raise CaptureError(
        f"a value of type {type(value).__name__} stands in the graph, and a document can only hold numbers, strings, "
        "None, dtypes, devices, slices and containers of them. Pass the module that makes it as leaf=."
    )


def decode_node(document: Node, nodes: Mapping[str, fx.Node]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return target, args and kwargs of the fx node that ``document`` describes.

    Parameters
    ----------
    nodes : mapping of str to fx.Node
        The nodes before it, by name.

    Raises
    ------
    DocumentError
        If it names a function, method, attribute or node that it may not.
    """
    target = _decode_target(document)
    if not isinstance(document.arguments, (list, tuple)) or not isinstance(document.keywords, dict):
        raise DocumentError(f"node {document.name!r}: its arguments are no array or its keywords no object.")
    args = tuple(decode(argument, nodes) for argument in document.arguments)
    kwargs = {name: decode(argument, nodes) for name, argument in document.keywords.items()}
    for name in kwargs:
        _check_identifier(name, f"a keyword of node {document.name!r}")
    if target is glue.apply_function:
        resolve_autograd_function(args[0] if args else "")
    if target is glue.make_object:
        resolve_object_class(args[0] if args else "")
    if target is getattr:
        attribute = args[1] if len(args) == 2 else ""
        _check_identifier(attribute, f"the attribute that node {document.name!r} reads")
        if attribute.startswith("_"):
            raise DocumentError(
                f"node {document.name!r} reads the private attribute {attribute!r}: the file is damaged."
            )
    return target, args, kwargs


def decode(form: Any, nodes: Mapping[str, fx.Node], *, depth: int = 0) -> Any:
    """Return the argument whose plain-JSON form is ``form``.

    Raises
    ------
    DocumentError
        If ``form`` is none, or names a node that ``nodes`` does not hold.
    """
    if depth > _DEEPEST:
        raise DocumentError(f"an argument in the graph is nested deeper than {_DEEPEST}: the file is damaged.")
    if form is None or isinstance(form, (bool, str, int, float)):
        return form
    if isinstance(form, (list, tuple)):
        return [decode(item, nodes, depth=depth + 1) for item in form]
    if not isinstance(form, dict) or len(form) != 1:
        raise DocumentError(f"{form!r} in the graph is no argument: an object there has one key that says what it is.")
    ((tag, content),) = form.items()

    def inner(item: Any) -> Any:
        return decode(item, nodes, depth=depth + 1)

    try:
        return _decode_tagged(tag, content, nodes, inner)
    except (TypeError, ValueError, AttributeError, KeyError, RuntimeError):
        raise DocumentError(f"{form!r} in the graph is no argument: the file is damaged.") from None


def _decode_tagged(tag: str, content: Any, nodes: Mapping[str, fx.Node], inner: Callable[[Any], Any]) -> Any:
    match tag:
        case "node":
            if content not in nodes:
                raise DocumentError(f"the graph reads node {content!r}, which no earlier node is: the file is damaged.")
            return nodes[content]
        case "tuple":
            return tuple(inner(item) for item in content)
        case "size":
            return torch.Size([int(item) for item in content])
        case "dict":
            return {inner(key): inner(item) for key, item in content}
        case "slice":
            start, stop, step = content
            return slice(inner(start), inner(stop), inner(step))
        case "range":
            return range(*(int(item) for item in content))
        case "int":
            return int(content)
        case "float":
            return float(content)
        case "complex":
            real, imaginary = content
            return complex(inner(real), inner(imaginary))
        case "ellipsis":
            return ...
        case "device":
            return torch.device(content)
        case "dtype" | "memory_format" | "layout":
            return _torch_constant(tag, content)
        case "class":
            return resolve_class(content)
    raise DocumentError(f"{tag!r} in the graph is no kind of argument: the file is damaged or of a newer autopipe.")


def _torch_constant(tag: str, name: str) -> Any:
    kind = {"dtype": torch.dtype, "memory_format": torch.memory_format, "layout": torch.layout}[tag]
    value = getattr(torch, name)
    if not isinstance(value, kind):
        raise TypeError(name)
    return value


def _bare(value: Any) -> str:
    return str(value).removeprefix("torch.")


_FORMS: tuple[tuple[str, type, Callable[[Any], Any]], ...] = (
    ("node", fx.Node, lambda node: node.name),
    ("size", torch.Size, list),
    ("tuple", tuple, lambda items: [encode(item) for item in items]),
    ("slice", slice, lambda piece: [encode(piece.start), encode(piece.stop), encode(piece.step)]),
    ("range", range, lambda numbers: [numbers.start, numbers.stop, numbers.step]),
    ("complex", complex, lambda number: [encode(number.real), encode(number.imag)]),
    ("ellipsis", type(...), lambda _: True),
    ("device", torch.device, str),
    ("dtype", torch.dtype, _bare),
    ("memory_format", torch.memory_format, _bare),
    ("layout", torch.layout, _bare),
)


def _encode_target(node: fx.Node) -> str:
    if node.op != "call_function":
        return str(node.target)
    if isinstance(node.target, type) and (name := class_name(node.target)) is not None:
        return f"class:{name}"
    if callable(node.target) and (name := function_name(node.target)) is not None:
        return name
    raise CaptureError(f"node {node.name} calls {node.target}, which a graph document cannot name.")


def _decode_target(document: Node) -> Any:
    target = document.target
    match document.op:
        case "call_function":
            return resolve_function(target)
        case "call_method":
            if not is_method(target):
                raise DocumentError(f"node {document.name!r} calls {target!r}, which is no method of tensors.")
        case "placeholder":
            _check_identifier(target, f"placeholder {document.name!r}")
        case "call_module" | "get_attr" | "output":
            pass
        case _:
            raise DocumentError(f"node {document.name!r} has the unknown op {document.op!r}: the file is damaged.")
    return target


def _check_identifier(name: Any, what: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise DocumentError(f"{what} is {name!r}, and may only be a Python name: the file is damaged.")
