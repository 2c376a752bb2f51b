"""Arguments of another type than the signature says are refused in a sentence, before anything is done with them."""

import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from autopipe.documents.files import Document, DocumentType, decode, encode
from autopipe.errors import DocumentError, InputError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Check = Callable[[Any], bool]

_SEQUENCE = re.compile(r"Sequence\[([^\[\]]+)\]")
_MAPPING = re.compile(r"Mapping\[str, ([^\[\]]+)\]")
_UNION = re.compile(r" \| (?![^\[\]]*\])")
_MODULE = re.compile(r"\b(?:\w+\.)+(?=\w)")


def _is_number(value: Any) -> bool:
    """Tell whether a value is a number that a float can be; a tensor of one number is one too."""
    if not isinstance(value, numbers.Real) and not hasattr(value, "item"):
        return False
    try:
        return not math.isnan(float(value))
    except (OverflowError, RuntimeError, TypeError, ValueError):
        return False


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _all(fits: Check) -> Check:
    return lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and all(map(fits, value))


def _has(name: str) -> Check:
    """Return a check for modules and optimizers of torch, which this module does not import."""
    return lambda value: hasattr(value, name) and not isinstance(value, type)


def _of_torch(name: str) -> Check:
    return lambda value: (type(value).__module__, type(value).__name__) == ("torch", name)


# By the words of an annotation, without modules; classes that are imported where the function is are known too.
_CHECKS: dict[str, Check] = {
    "int": _is_whole,
    "float": _is_number,
    "str": _is_text,
    "bool": lambda value: isinstance(value, bool),
    "None": lambda value: value is None,
    "Path": lambda value: isinstance(value, Path),
    "Any": lambda value: True,
    "type": lambda value: isinstance(value, type),
    "device": _of_torch("device"),
    "dtype": _of_torch("dtype"),
    "LossFunction": callable,
    "Policy": lambda value: callable(value) or isinstance(value, Sequence),
    "Iterable[Any]": lambda value: hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__"),
    "Module": _has("named_parameters"),
    "Optimizer": _has("param_groups"),
}


def typed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return ``function`` with its arguments checked: those whose annotation is a union of plain types or classes.

    Documents made by hand are checked as those that are read from a file: the types of their fields, and whether these
    contradict each other.

    Raises
    ------
    InputError
        In the call, if an argument has another type, or is no number.
    DocumentError
        In the call, if a document does not hold together.
    """
    signature = inspect.signature(function)
    name_of_function = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    wanted = {name: _words(parameter.annotation) for name, parameter in signature.parameters.items()}
    checks = {name: fits for name, words in wanted.items() if (fits := _check(words, function)) is not None}

    @functools.wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        call = signature.bind(*args, **kwargs)
        for name, value in tuple(call.arguments.items()):
            if name in checks and not checks[name](value):
                takes = wanted[name].replace(" | ", " or ")
                raise InputError(f"{name_of_function} was given {name}={_short(value)}, and takes {takes} there.")
            if isinstance(value, Document):
                call.arguments[name] = checked_document(value, origin=f"{name}=")
        return function(*call.args, **call.kwargs)

    return checked


def checked_document(document: DocumentType, *, origin: str) -> DocumentType:
    """Return a document that was made in Python, as it would be read from a file.

    Raises
    ------
    DocumentError
        If it could not be; the field is named.
    """
    kind = type(document)
    try:
        read = decode(encode(document), kind, origin=origin)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        name = kind.__struct_config__.tag
        raise DocumentError(f"{origin} cannot be written as an {name} document: {error}. Check its fields.") from None
    return document if read == document else read


def _words(annotation: Any) -> str:
    return _MODULE.sub("", annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _check(words: str, function: Callable[..., Any]) -> Check | None:
    """Return what tells whether a value fits an annotation; None if that is not for this module to say."""
    kinds = [_check_one(word, function) for word in _UNION.split(words)]
    known = [fits for fits in kinds if fits is not None]
    return (lambda value: any(fits(value) for fits in known)) if len(known) == len(kinds) else None


def _check_one(word: str, function: Callable[..., Any]) -> Check | None:
    if word.startswith("Callable["):
        return callable
    if (sequence := _SEQUENCE.fullmatch(word)) is not None:
        items = _check(sequence[1], function)
        return None if items is None else _all(items)
    if (mapping := _MAPPING.fullmatch(word)) is not None:
        fits = _check(mapping[1], function)
        return None if fits is None else _mapping_of(fits)
    known = inspect.unwrap(function).__globals__.get(word)
    if isinstance(known, type) and known is not Any:
        return lambda value: isinstance(value, known)
    return _CHECKS.get(word)


def _mapping_of(fits: Check) -> Check:
    return lambda value: isinstance(value, Mapping) and all(map(_is_text, value)) and all(map(fits, value.values()))


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
