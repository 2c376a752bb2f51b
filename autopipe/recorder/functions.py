"""The functions that a graph document may name, and their names: nothing else is ever called from a file."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from autopipe.errors import DocumentError
from autopipe.recorder import glue
from autopipe.recorder.foreign import find_class, operator_name, resolve_operator

_OPERATORS = (
    "abs add and_ eq floordiv ge getitem gt iadd iand ifloordiv imul invert ior ipow isub itruediv le lt matmul mod "
    "mul ne neg not_ or_ pos pow sub truediv xor"
)
_FACTORIES = (
    "arange as_strided as_tensor asarray bartlett_window blackman_window complex empty empty_permuted empty_strided "
    "eye fill full hamming_window hann_window kaiser_window linspace logspace normal ones polar rand rand_like randint "
    "randint_like randn randn_like randperm range scalar_tensor tensor tril_indices triu_indices vander zeros"
)
_ACTIVATIONS = (
    "celu_ elu_ hardsigmoid hardswish hardtanh_ leaky_relu_ relu_ rrelu_ selu_ sigmoid tanh threshold_ upsample"
)
# What public functions call in their place, where a torch function mode sees the inner one only.
_PRIVATE = "_grouped_mm _scaled_mm _scaled_grouped_mm _is_all_true _is_any_true"
_GLUE = (
    "choose set_item enter_grad_mode exit_grad_mode enter_autocast exit_autocast expect expect_size expect_value "
    "apply_function make_object write_back"
)
_FORBIDDEN_METHODS = "apply_ backward map_ map2_ numpy register_hook share_memory_ storage untyped_storage"
_SPECIAL_METHODS = (
    "__pow__ __and__ __or__ __xor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __invert__ __rsub__ __rdiv__ "
    "__rtruediv__ __rpow__ __floordiv__ __rfloordiv__ __rmod__ __rmatmul__ __iand__ __ior__ __ixor__ __lshift__ "
    "__rshift__ __rlshift__ __rrshift__ __rand__ __ror__ __rxor__ __ipow__ __idiv__ __ilshift__ __irshift__"
)
_RANDOM = (
    "dropout",
    "rand",
    "exponential",
    "cauchy",
    "geometric",
    "bernoulli",
    "normal",
    "multinomial",
    "rrelu",
    "gumbel",
    "scaled_dot_product",
    "poisson",
)


def function_name(function: Callable[..., Any]) -> str | None:
    """Return the name by which a document may call ``function``, None if it may not."""
    return operator_name(function) or _tables()[1].get(function)


def resolve_function(name: str) -> Callable[..., Any]:
    """Return the function that a document calls ``name``.

    Raises
    ------
    DocumentError
        If it is none of those that a graph may call.
    """
    if name.startswith("class:"):
        return resolve_class(name.removeprefix("class:"))
    function = resolve_operator(name) or _tables()[0].get(name)
    if function is None:
        raise DocumentError(
            f"the graph calls {name!r}, which is no function that a graph may call: torch's, operator's and math's "
            "own are, and operators registered here. The file is damaged, or was made with libraries or a version "
            "of torch that are not loaded here; import the model's own code first, or record the model again."
        )
    return function


def method_name(function: Callable[..., Any]) -> str | None:
    """Return the name under which ``function`` is a method of every tensor that a graph may call."""
    return _method_names().get(function)


def is_method(name: str) -> bool:
    """Return whether a document may call the tensor method ``name``."""
    return name in _methods()


def is_random(target: Any) -> bool:
    """Return whether calling ``target`` (a function or a method's name) may draw random numbers."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return any(word in name for word in _RANDOM)


def class_name(kind: type) -> str | None:
    """Return the name by which a document may build a value of class ``kind``, None if it may not."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name if is_structure(kind) and find_class(name) is kind else None


def resolve_class(name: str) -> type:
    """Return the class ``name`` of a structured value, from the modules that are loaded already.

    Raises
    ------
    DocumentError
        If no loaded module has it, or it is no dataclass, named tuple or dictionary.
    """
    kind = find_class(name)
    if kind is None or not is_structure(kind):
        raise DocumentError(
            f"the graph builds a value of class {name!r}, which is no dataclass, named tuple or dictionary of a "
            "module that is loaded. Import the model's own code first, or record the model again."
        )
    return kind


def is_structure(kind: type) -> bool:
    """Return whether values of class ``kind`` are containers with named fields: dataclass, named tuple, dict."""
    is_named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return dataclasses.is_dataclass(kind) or is_named_tuple or (issubclass(kind, dict) and kind is not dict)


@cache
def _tables() -> tuple[Mapping[str, Callable[..., Any]], Mapping[Callable[..., Any], str]]:
    by_name = dict(_named_functions())
    by_function: dict[Callable[..., Any], str] = {}
    for name, function in by_name.items():
        by_function.setdefault(function, name)
    return MappingProxyType(by_name), MappingProxyType(by_function)


def _named_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    overridable = {f for functions in torch.overrides.get_overridable_functions().values() for f in functions}
    for name in _FACTORIES.split():
        yield f"torch.{name}", getattr(torch, name)
    for name in _ACTIVATIONS.split():
        yield f"torch.nn.functional.{name}", getattr(functional, name)
    for name in _PRIVATE.split():
        if hasattr(torch, name):
            yield f"torch.{name}", getattr(torch, name)
    for prefix, namespace in (
        ("torch", torch),
        ("torch.nn.functional", functional),
        ("torch.linalg", torch.linalg),
        ("torch.fft", torch.fft),
        ("torch.special", torch.special),
        ("torch._C._nn", torch._C._nn),
    ):
        for name in sorted(vars(namespace)):
            function = getattr(namespace, name, None)
            if callable(function) and not isinstance(function, type) and _hashable_in(function, overridable):
                yield f"{prefix}.{name}", function
    yield from ((f"operator.{name}", getattr(operator, name)) for name in _OPERATORS.split())
    for name in ("ceil", "floor", "sqrt"):
        yield f"math.{name}", getattr(math, name)
    yield from ((f"builtins.{function.__name__}", function) for function in (getattr, int, float, bool, len, min, max))
    yield from ((f"autopipe.recorder.glue.{name}", getattr(glue, name)) for name in _GLUE.split())


def _hashable_in(function: Any, functions: set[Any]) -> bool:
    try:
        return function in functions
    except TypeError:
        return False


@cache
def _methods() -> Mapping[str, Callable[..., Any]]:
    names = sorted({name for name in dir(Tensor) if not name.startswith("_")} - set(_FORBIDDEN_METHODS.split()))
    methods = {name: getattr(Tensor, name) for name in (*names, *_SPECIAL_METHODS.split()) if hasattr(Tensor, name)}
    return MappingProxyType({name: method for name, method in methods.items() if callable(method)})


@cache
def _method_names() -> Mapping[Callable[..., Any], str]:
    names: dict[Callable[..., Any], str] = {}
    for name, method in _methods().items():
        names.setdefault(method, name)
    return MappingProxyType(names)
