"""The stages of a plan become a Python package: each stage a class in a file of its own, to read and to import."""

from collections.abc import Sequence
from keyword import iskeyword
from types import ModuleType
from typing import Any

from jinja2 import Environment, PackageLoader

from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.errors import InputError
from autopipe.exporters.export import File


def stage_files(plan: Plan, graph: Graph) -> tuple[File, ...]:
    """Return the files of a package whose classes are the stages of ``plan``.

    ``split(model)`` of the package returns what `autopipe.split` does: each stage takes its modules, parameters and
    buffers from a model at hand and keeps their names, so that the stages' state_dicts together are the model's.

    Raises
    ------
    InputError
        If the model calls something that no import finds again, such as a function inside another.
    DocumentError
        If the graph is damaged, or names a class that is not loaded.
    """
    from autopipe.recorder.code import RecordedCode
    from autopipe.recorder.rebuilding import body_of, names_read
    from autopipe.stages.split import piece_body, pieces

    environment = Environment(
        loader=PackageLoader("autopipe", "exporters"), trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    body = body_of(graph)
    whole = pieces(graph, (0, *(stage.end for stage in plan.stages)))
    files = []
    for piece in whole:
        operations = piece_body(body, piece)
        operations.set_codegen(RecordedCode(operations))
        code = operations.python_code("self")
        names = names_read(operations)
        text = environment.get_template("stage_code.py.jinja").render(
            piece=piece,
            count=len(whole),
            rank=plan.stages[piece.index].rank,
            layers=[layer.name for layer in graph.layers[piece.begin : piece.end]],
            parameters=_held(graph, names),
            names=names,
            imports=sorted(_import(name, value) for name, value in code.globals.items() if name in code.src),
            forward=code.src.strip().splitlines(),
        )
        files.append(File(name=f"stage_{piece.index}.py", text=text.rstrip() + "\n"))
    package = environment.get_template("stage_package.py.jinja").render(
        stages=whole, ranks=[stage.rank for stage in plan.stages], model=_plain(graph.model)
    )
    return (File(name="__init__.py", text=package.rstrip() + "\n"), *files)


def _plain(name: str) -> str:
    """Return the name of the model's class, which stands in a docstring."""
    return name if name.isidentifier() and not iskeyword(name) else "a model"


def _held(graph: Graph, names: Sequence[str]) -> list[str]:
    """Return the parameters and buffers that the modules and tensors ``names`` hold, by the names that lead there."""
    everything = sorted(name for one in graph.parameters for name in (one.name, *one.aliases))
    return [name for name in everything if any(name == read or name.startswith(f"{read}.") for read in names)]


def _import(name: str, value: Any) -> str:
    """Return the line that gives ``name`` the value that the generated code means by it."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
    if isinstance(value, float):
        return f"from math import {name}"
    if value is type(None):
        return f"from types import {name}"
    home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if home is None or not own.isidentifier():
        raise InputError(
            f"the model calls {own or value!r}, which no import finds again: move it to the top of its module and "
            "profile again."
        )
    return f"from {home} import {own}" if own == name else f"from {home} import {own} as {name}"
