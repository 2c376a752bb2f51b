"""A recorded model is built again from its `Graph` document, without ever calling its forward."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx, nn

from autopipe.documents.graph import Graph, Node, Parameter
from autopipe.errors import DocumentError, MismatchError
from autopipe.recorder.code import RecordedCode
from autopipe.recorder.configuration import configuration
from autopipe.recorder.encode import decode_node
from autopipe.recorder.glue import (
    ATTRIBUTES,
    FLAG,
    METHODS,
    AttributeReader,
    MethodCall,
    TrainingFlag,
)
from autopipe.recorder.methods import methods_of
from autopipe.recorder.writing import parameters_of

_SAFE_NAME = re.compile(r"[\w.\- ]+")


def rebuild(model: nn.Module, graph: Graph) -> fx.GraphModule:
    """Return the module that ``graph`` describes, made of the modules and parameters of ``model``.

    Nothing is copied and no forward is called; a document can name only torch's functions, ours and classes
    that are loaded already, so that reading one made by a stranger runs no code of theirs.

    Raises
    ------
    MismatchError
        If the graph was made for another model; the first difference is named.
    DocumentError
        If the graph is damaged.
    """
    check_model(model, graph)
    for node in graph.nodes:
        _check_target(model, node)
    return assemble(body_of(graph), model)


def body_of(graph: Graph) -> fx.Graph:
    """Return the operations of ``graph`` as torch.fx has them, without the modules that they name.

    Raises
    ------
    DocumentError
        If the graph is damaged, or names a class that is not loaded.
    """
    body = fx.Graph()
    nodes: dict[str, fx.Node] = {}
    for document in graph.nodes:
        if document.op in ("call_module", "get_attr") and not _SAFE_NAME.fullmatch(document.target):
            raise DocumentError(f"the graph reads {document.target!r}, which is no name: the file is damaged.")
        target, args, kwargs = decode_node(document, nodes)
        node = body.create_node(document.op, target, args, kwargs, name=document.name)
        if node.name != document.name:
            raise DocumentError(f"node {document.name!r} has no usable or no unique name: the file is damaged.")
        nodes[document.name] = node
    if not graph.nodes or graph.nodes[-1].op != "output":
        raise DocumentError("the graph does not end with its output: the file is damaged.")
    return body


def assemble(
    graph: fx.Graph,
    source: nn.Module,
    *,
    class_name: str = "Recorded",
    replace: Callable[[Any], Any] = lambda value: value,
) -> fx.GraphModule:
    """Return a module that runs ``graph`` with the modules, parameters and buffers of ``source``, by their names.

    Containers on the way to a name are made anew, so that ``source`` is not changed; a buffer that its
    state_dict leaves out is left out of the new one's too.

    Parameters
    ----------
    source : nn.Module
        A model, or another module assembled from it.
    replace : callable, optional
        Returns what stands for a module or tensor of ``source`` in the new module; by default itself.
    """
    module = fx.GraphModule(nn.Module(), fx.Graph(), class_name)
    module.training = source.training
    adopt(module, source, names_read(graph), replace)
    graph.set_codegen(RecordedCode(graph))
    module.graph = graph
    graph.lint()
    return module


def names_read(graph: fx.Graph) -> tuple[str, ...]:
    """Return the modules, parameters and buffers that ``graph`` calls and reads, by their names in the model."""
    return tuple(dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")))


def adopt(
    module: Any, source: nn.Module, names: Sequence[str], replace: Callable[[Any], Any] = lambda value: value
) -> None:
    """Give ``module``, an `nn.Module` without children, what ``source`` holds by these names, as `assemble` does."""
    readers = [name for name in names if name.startswith(f"{ATTRIBUTES}.")]
    for name in sorted(set(names).difference(readers), key=lambda name: (name.count("."), name)):
        _attach(module, source, name, replace)
    for name in readers:
        _, *path, attribute = name.split(".")
        owner = module.get_submodule(".".join(path))
        _place(module, module, [ATTRIBUTES, *path]).add_module(attribute, AttributeReader(owner, attribute))


def check_model(model: nn.Module, graph: Graph) -> None:
    """Check that ``graph`` was made for ``model``.

    Raises
    ------
    MismatchError
        If a parameter or buffer is missing, new, or of another shape, dtype or tying, or a module that the graph does
        not call is configured otherwise: its rates, sizes and flags are constants of the graph.
    """
    expected = {parameter.name: parameter for parameter in graph.parameters}
    present = {parameter.name: parameter for parameter in parameters_of(model)}
    kind = type(model).__name__
    for name in (*expected, *present):
        difference = _difference(expected.get(name), present.get(name))
        if difference is not None:
            raise MismatchError(
                f"the graph was made for {graph.model}, and this {kind} differs: {name!r} {difference}. "
                "Build the model as it was when it was recorded, or record it again."
            )
    called = {node.target for node in graph.nodes if node.op == "call_module"}
    found = configuration(model, called) if graph.configuration else {}
    for path in (*graph.configuration, *found):
        if graph.configuration.get(path) != found.get(path):
            module = model.get_submodule(path) if path in found else model
            title = f"`{path}` ({type(module).__name__})" if path else f"{kind} itself"
            raise MismatchError(
                f"the graph was made for {graph.model}, and this one's module {title} is configured otherwise than the "
                f"one that was recorded: its numbers, names and flags are part of the graph, and would be the old "
                f"ones.{_as_now(module)} Build the model as it was when it was recorded, or record (and plan) it again."
            )


def _as_now(module: nn.Module) -> str:
    now = module.extra_repr()
    return f" Now it has {now}." if now else ""


def _difference(expected: Parameter | None, present: Parameter | None) -> str | None:
    if expected is None or present is None:
        return "is in the graph and not in the model" if present is None else "is in the model and not in the graph"
    for field in ("shape", "dtype", "aliases", "is_buffer"):
        wanted, found = getattr(expected, field), getattr(present, field)
        if wanted != found:
            return f"has {field} {wanted} in the graph and {found} in the model"
    return None


def _check_target(model: nn.Module, node: Node) -> None:
    """Check that the modules and attributes that a node names are the model's own."""
    if node.op not in ("call_module", "get_attr"):
        return
    owner, _, attribute = node.target.rpartition(".")
    is_method = node.op == "call_module" and owner == METHODS
    reads_back = node.op == "call_module" and owner.startswith(f"{ATTRIBUTES}.")
    try:
        module = model.get_submodule("" if is_method else owner.removeprefix(f"{ATTRIBUTES}.") if reads_back else owner)
        if is_method:
            is_there = attribute in methods_of(model)
        elif reads_back:
            is_there = not attribute.startswith("__")
        elif node.op == "call_module":
            is_there = attribute == FLAG or isinstance(getattr(module, attribute), nn.Module)
        else:
            is_there = isinstance(getattr(module, attribute), Tensor)
    except AttributeError:
        is_there = False
    # fx writes names into source code: names such as torchvision's `block1-0` are fine there, quotes are not.
    if not is_there or not _SAFE_NAME.fullmatch(node.target):
        raise MismatchError(
            f"the graph reads {node.target!r}, which this {type(model).__name__} does not have. Build the model as "
            "it was when it was recorded, or record it again."
        )


def _attach(module: fx.GraphModule, source: nn.Module, target: str, replace: Callable[[Any], Any]) -> None:
    *path, attribute = target.split(".")
    place = _place(module, source, path)
    origin: Any = source if path == [METHODS] and not hasattr(source, METHODS) else source.get_submodule(".".join(path))
    if any(attribute in table for table in (place._modules, place._parameters, place._buffers, vars(place))):
        # Part of a module that was attached whole: it is there already, and not ours to change.
        return
    if attribute == FLAG and not hasattr(origin, FLAG):
        value: Any = TrainingFlag(origin)
    elif path == [METHODS] and origin is source:
        value = MethodCall(source, attribute)
    else:
        value = replace(getattr(origin, attribute))
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        is_persistent = attribute in origin._buffers and attribute not in origin._non_persistent_buffers_set
        place.register_buffer(attribute, value, persistent=is_persistent)
    else:
        setattr(place, attribute, value)


def _place(module: nn.Module, source: nn.Module, path: Sequence[str]) -> nn.Module:
    """Return the submodule of ``module`` at ``path``; containers on the way that it lacks are made as in ``source``."""
    place, origin = module, source
    for name in path:
        origin = getattr(origin, name, origin)
        if getattr(place, name, None) is None:
            container = nn.Module()
            container.training = origin.training
            place.add_module(name, container)
        place = getattr(place, name)
    return place
