"""Arguments of another type than the signature says are refused in a sentence, before anything is done with them."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from autopipe.documents.files import decode, encode
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.errors import DocumentError, InputError
from autopipe.hardware.cluster import Cluster

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not math.isnan(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and all(map(fits, value))


# By the words of an annotation; others are not checked here.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": _is_whole,
    "float": _is_number,
    "str": _is_text,
    "bool": lambda value: isinstance(value, bool),
    "None": lambda value: value is None,
    "Path": lambda value: isinstance(value, Path),
    "Sequence[str]": _all(_is_text),
    "Sequence[int]": _all(_is_whole),
    "Mapping[str, Any]": lambda value: isinstance(value, Mapping),
    "nn.Module": lambda value: hasattr(value, "named_parameters") and not isinstance(value, type),
    "Graph": lambda value: isinstance(value, Graph),
    "Plan": lambda value: isinstance(value, Plan),
    "Profile": lambda value: isinstance(value, Profile),
    "Cluster": lambda value: isinstance(value, Cluster),
}


def typed(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return ``function`` with its arguments checked: those whose annotation is a union of plain types.

    Raises
    ------
    InputError
        In the call, if an argument has another type, or is no number.
    """
    signature = inspect.signature(function)
    kinds = {
        name: [_CHECKS[word] for word in words]
        for name, parameter in signature.parameters.items()
        if (words := str(parameter.annotation).split(" | ")) and all(word in _CHECKS for word in words)
    }

    @functools.wraps(function)
    def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in kinds and not any(fits(value) for fits in kinds[name]):
                wanted = str(signature.parameters[name].annotation).replace(" | ", " or ")
                raise InputError(f"{function.__name__} was given {name}={_short(value)}, and takes {wanted} there.")
        return function(*args, **kwargs)

    return checked


def checked_cluster(cluster: Cluster) -> Cluster:
    """Return the cluster, if its fields are what they are in a file.

    Raises
    ------
    InputError
        If not; the field is named.
    """
    try:
        return decode(encode(cluster), Cluster, origin="the cluster that was passed")
    except (DocumentError, msgspec.MsgspecError, TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise InputError(f"cluster= cannot be used: {error}") from None


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
