"""While a model runs, the calls of torch functions and of modules are written down in an fx graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from autopipe.recorder import glue
from autopipe.recorder.chance import Chance
from autopipe.recorder.example import Example, tensors
from autopipe.recorder.foreign import autograd_function_name
from autopipe.recorder.functions import is_random
from autopipe.recorder.leaves import Leaves
from autopipe.recorder.ledger import Ledger, TensorNames
from autopipe.recorder.methods import Uses, running_method
from autopipe.recorder.notes import NOTE, Note, describe, memory, versions, written
from autopipe.recorder.reading import Reads
from autopipe.recorder.rebinding import (
    LeafAttributes,
    attributes_of,
    buffers_rebound,
    put_back_buffer,
    rebound,
    undo_views,
)
from autopipe.recorder.refusal import Refusal, Unwritable, refusal, refusal_of
from autopipe.recorder.regions import Regions
from autopipe.recorder.stand_ins import Substitution
from autopipe.recorder.vocabulary import Query, classify


@dataclass(kw_only=True)
class Frame:
    """An open module that is running: its path, the last node before it, and why it cannot stay open, if so.

    ``draws`` counts the calls that had drawn random numbers when it was entered.
    """

    path: str
    mark: fx.Node | None
    regions: int
    draws: int
    demoted: Refusal | None = None


class Recorder(TorchFunctionMode):
    """Writes down the calls of torch functions and of modules while a model runs."""

    def __init__(
        self, model: nn.Module, leaves: Leaves, *, names: TensorNames, compiling: bool, specialises: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.leaves = leaves
        self.compiling = compiling
        self.graph = fx.Graph()
        self.demoted: dict[str, Refusal] = {}
        self.refused: Refusal | None = None
        self.ledger = Ledger(model, self.graph, names, self._note)
        self.frames: list[Frame] = []
        self.reads = Reads(self._emit, self.ledger.argument, lambda: specialises and self._is_at_root())
        self.refusing_method: str | None = None
        self.rebinds = False
        self.written_back: set[str] = set()
        self.attributes = LeafAttributes(model)
        self.chance = Chance()
        self.values = Substitution(model, self.chance)
        self.regions = Regions(self._emit)
        self.muted = True

    # What torch and the patches call

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the call of a torch function."""
        kwargs = kwargs or {}
        if self.muted:
            return self.values.call(func, args, kwargs)
        with self._silent():
            return self._function(func, args, kwargs)

    def call_module(self, module: nn.Module, args: Any, kwargs: Any, original: Callable[..., Any]) -> Any:
        """Record the call of a module: enter it, or write it down as one node."""
        path = self.ledger.path(module)
        if path is None:
            return original(module, *args, **kwargs)
        if self.muted and self.frames:
            is_whole = self.leaves.is_leaf(module, path)
            return (
                self.values.call_module(module, original, args, kwargs)
                if is_whole
                else original(module, *args, **kwargs)
            )
        if isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            # What torch.compile would make of it hides every module inside: its original is recorded.
            return inner(*args, **kwargs)
        is_small = self.leaves.is_small(module, path)
        if path and (is_small or self.leaves.is_leaf(module, path)):
            with self._silent():
                # One that is given what no graph holds, such as another module, may still be entered.
                if not (is_small or self.leaves.is_optional(module, path)) or self._is_writable((args, kwargs)):
                    return self._leaf(module, path, args, kwargs, original)
        return self._open(module, path, args, kwargs)

    def enter_autocast(self, region: torch.autocast) -> None:
        """Record the start of an autocast region."""
        if not self.muted:
            self.regions.enter_autocast(region)

    def exit_autocast(self, region: torch.autocast) -> None:
        """Record the end of an autocast region."""
        if not self.muted:
            self.regions.exit_autocast(region)

    def apply_function(self, kind: Any, args: Any, original: Callable[..., Any]) -> Any:
        """Record the call of a custom autograd function."""
        with self._silent():
            title = f"the custom autograd function {kind.__name__}"
            name = autograd_function_name(kind)
            try:
                if name is None:
                    raise Unwritable("is local to a Python function, so that a graph cannot name it")
                arguments = self.ledger.argument(args)
            except Unwritable as error:
                self.notice(f"{title} {error}")
                return original(*args)
            before = versions(tensors(args))
            with self._stepped_aside():
                result = original(*args)
            node = self._emit("call_function", glue.apply_function, (name, *arguments))
            return self._result(node, result, written(before), args)

    def call_method(self, name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record the call of a method of the model as one node."""
        if self.muted:
            return original(*args, **kwargs)
        with self._silent():
            try:
                arguments = self.ledger.argument(args), self.ledger.argument(kwargs)
            except Unwritable as error:
                self.notice(f"its method `{name}` {error}")
                return original(*args, **kwargs)
            before = versions(tensors((args, kwargs)))
            with self._stepped_aside(), Uses(self.ledger.names) as uses:
                result = self.values.call(original, args, kwargs)
            if uses.name is not None:
                self.notice(f"its method `{name}` reads values of tensors and uses `{uses.name}`")
                return result
            node = self._emit("call_module", f"{glue.METHODS}.{name}", *arguments)
            return self._result(node, result, written(before), (args, kwargs))

    def notice(self, reason: str) -> None:
        """Note that what runs now cannot be written down: the innermost open module becomes a leaf."""
        if self.frames and self.frames[-1].demoted is None:
            frame = self.frames[-1]
            if not frame.path:
                self.refusing_method = running_method(self.model)
            frame.demoted = refusal(self.ledger.title(frame.path), reason)
        self.muted = True

    # The parts of a run

    def bind(self, example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Write down the placeholders and return the arguments to run the model on."""
        nodes = []
        for name, value in example.values.items():
            node = self.graph.placeholder(name)
            node.meta[NOTE] = describe(self._note(), value)
            nodes.append(node)
        for node, (name, value) in zip(nodes, example.values.items(), strict=True):
            for part, item in self.ledger.learn(value, node):
                # Which values in a container Python reads cannot be seen, so that each is taken to matter.
                self._guard(part, item, f"a value in argument {name}")
            if isinstance(value, (list, tuple, dict)):
                count = self._emit("call_function", len, (node,))
                self._guard(count, len(value), f"the number of items of argument {name}")
            if not isinstance(value, Tensor) and not tensors(value):
                self._guard(node, value, f"argument {name}")
        return example.call_args()

    def finish(self, output: Any) -> None:
        """Write down what the model returned."""
        if self.refused is not None:
            return
        try:
            self.graph.output(self.ledger.argument(output))
        except Unwritable as error:
            self.refused = refusal_of(self.model, self.ledger.title(""), f"its output {error}")
            return
        for node in self.graph.nodes:
            node.meta.setdefault(NOTE, Note(owner="", is_value=False))

    def _open(self, module: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        mark = self.ledger.last()
        frame = Frame(path=path, mark=mark, regions=self.regions.depth, draws=self.chance.draws)
        inputs = versions(tensors((args, kwargs)))
        attributes = attributes_of(module)
        self.frames.append(frame)
        self.muted = False
        try:
            result = module._call_impl(*args, **kwargs)
            with self._silent():
                undo_views(module, attributes)
                if frame.demoted is None:
                    self._write_back(module, attributes)
            changed = rebound(module, attributes)
            if changed is not None and frame.demoted is None:
                self.rebinds = True
                reason = f"it rebinds its attribute `{changed}` while it runs"
                frame.demoted = refusal_of(module, self.ledger.title(path), reason, attribute=changed)
        finally:
            self.frames.pop()
            self.muted = True
        if frame.demoted is not None:
            result = self._demote(frame, args, kwargs, result, written(inputs))
        self.muted = not self.frames or any(outer.demoted for outer in self.frames)
        return result

    def _write_back(self, module: nn.Module, attributes: dict[str, Any]) -> None:
        """Write down that an open module gave buffers new values, in tensors that took their place."""
        for old, new in buffers_rebound(module, attributes):
            name = self.ledger.name(old)
            if name is None:
                continue
            try:
                value = self.ledger.argument(new)
            except Unwritable:
                continue
            node = self._emit("call_function", glue.write_back, (self.ledger.read_attribute(name, old), value))
            node.meta[NOTE] = replace(node.meta[NOTE], writes=frozenset(filter(None, [memory(old)])))
            self.written_back.add(name)
            put_back_buffer(module, old, new)

    def _demote(self, frame: Frame, args: Any, kwargs: Any, result: Any, writes: frozenset[int]) -> Any:
        """Replace what was written inside an open module by one call of it."""
        assert frame.demoted is not None
        self.ledger.erase_after(frame.mark)
        if self.chance.draws > frame.draws:
            self.chance.note()
        self.regions.forget_after(frame.regions)
        if not frame.path:
            self.refused = frame.demoted
            return result
        self.demoted[frame.path] = frame.demoted
        self.attributes.learn(self.model.get_submodule(frame.path))
        with self._silent():
            try:
                arguments = self.ledger.argument(args), self.ledger.argument(kwargs)
            except Unwritable:
                self._pass_on(frame.demoted)
                return result
            return self._emit_leaf(frame.path, arguments, result, writes, (args, kwargs))

    def _pass_on(self, reason: Refusal) -> None:
        """Demote the module around one that can neither be entered nor be called with written arguments."""
        if self.frames and self.frames[-1].demoted is None:
            self.frames[-1].demoted = reason

    def _is_writable(self, arguments: Any) -> bool:
        mark = self.ledger.last()
        try:
            self.ledger.argument(arguments)
        except Unwritable:
            return False
        finally:
            self.ledger.erase_after(mark)
        return True

    def _leaf(self, module: nn.Module, path: str, args: Any, kwargs: Any, original: Callable[..., Any]) -> Any:
        try:
            arguments = self.ledger.argument(args), self.ledger.argument(kwargs)
        except Unwritable as error:
            self.notice(f"module {self.ledger.title(path)} {error}")
            return self.values.call_module(module, original, args, kwargs)
        changed = self.attributes.set_meanwhile(module, path)
        if changed is not None:
            self.rebinds = True
            self.notice(f"the attribute `{changed}` of a module that is called whole is set before the call")
        before = versions([*tensors((args, kwargs)), *module.buffers(), *module.parameters()])
        with self._stepped_aside():
            result = self.values.call_module(module, original, args, kwargs)
        self.attributes.learn(module)
        return self._emit_leaf(path, arguments, result, written(before), (args, kwargs))

    def _emit_leaf(
        self, path: str, arguments: tuple[Any, Any], result: Any, writes: frozenset[int], inputs: Any
    ) -> Any:
        node = self._emit("call_module", path, *arguments)
        self.ledger.called(path, node)
        return self._result(node, result, writes, inputs)

    def _function(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if func is torch._C._set_grad_enabled:
            return self.regions.set_grad_mode(bool(args[0]))
        call = classify(func, args)
        if isinstance(call, Query):
            return self._query(call, func, args, kwargs)
        # What depends on neither inputs nor parameters is the same in every run: Python may read it.
        is_constant = self.ledger.is_constant(tensors((args, kwargs)))
        if call.target is None and not is_constant:
            result = self.values.call(func, args, kwargs)
            if not self.reads.allow_value(args[0] if args else None, result):
                self.notice(f"{call.title} {call.refusal}")
            return result
        try:
            if not self.regions.is_followed():
                raise Unwritable("runs after the grad mode was changed in a way that a graph cannot follow")
            arguments = self.ledger.argument(call.args(args)), self.ledger.argument(kwargs)
        except Unwritable as error:
            self.notice(f"{call.title} {error}")
            return self.values.call(func, args, kwargs)
        before = versions(tensors((args, kwargs)))
        result = self.values.call(func, args, kwargs)
        writes = written(before)
        if result is None and not writes:
            return result
        if call.reads_values(result):
            if not is_constant and not self.reads.allow_value(
                args[0] if len(tensors((args, kwargs))) == 1 else None, result
            ):
                self.notice(f"{call.title} gives Python a value that is computed from tensors")
            return result
        if call.target is None:
            self.notice(f"{call.title} {call.refusal}")
            return result
        node = self._emit(call.op, call.target, *arguments)
        made = args[0] if call.returns_target else result
        given = self._result(
            node,
            made,
            writes,
            (args, kwargs),
            tainted=call.is_value_shaped(args, result),
            constant=is_constant and not is_random(call.target),
        )
        return result if call.returns_target else given

    def _query(self, call: Query, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = self.values.call(func, args, kwargs)
        is_value = call.of_shape and any(self.ledger.is_tainted(tensor) for tensor in tensors(args))
        if is_value and not self.reads.allow_shape(args[0] if args else None):
            self.notice(f"{call.title} is read of a tensor whose shape depends on values")
        return result

    def _result(
        self,
        node: fx.Node,
        result: Any,
        writes: frozenset[int],
        inputs: Any,
        *,
        tainted: bool = False,
        constant: bool = False,
    ) -> Any:
        """Learn what ``node`` made; a tensor that passed through unwritten comes back as another object."""
        passed = {id(tensor): tensor for tensor in tensors(inputs)}
        tainted = tainted or any(self.ledger.is_tainted(tensor) for tensor in passed.values())
        if isinstance(result, Tensor) and id(result) in passed and not writes:
            result = result.view_as(result)
        if not constant:
            self.ledger.varying |= writes
        draws = self.chance.has_drawn()
        note = replace(node.meta[NOTE], writes=writes, is_tainted=tainted, is_constant=constant, draws=draws)
        node.meta[NOTE] = describe(note, result)
        for child, value in self.ledger.learn(result, node):
            self._guard(child, value, f"a result of {node.target}")
        return result

    def _guard(self, node: fx.Node, value: Any, what: str) -> None:
        if isinstance(value, (bool, int, float, str, type(None))):
            self._emit("call_function", glue.expect, (node, value, what))

    def _emit(self, op: str, target: Any, args: Any = (), kwargs: Any = None) -> fx.Node:
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs or {}))
        node.meta[NOTE] = replace(self._note(), is_value=False)
        return node

    def _is_at_root(self) -> bool:
        return bool(self.frames) and not self.frames[-1].path

    def _note(self) -> Note:
        return Note(owner=self.frames[-1].path if self.frames else "")

    @contextmanager
    def _silent(self) -> Iterator[None]:
        """Do not record what the recorder itself does, nor what happens inside a leaf."""
        self.muted = True
        try:
            yield
        finally:
            self.muted = any(frame.demoted for frame in self.frames)

    @contextmanager
    def _stepped_aside(self) -> Iterator[None]:
        """Take this mode away for a while: what runs in a leaf may ask whether there is one."""
        if torch.overrides._get_current_function_mode() is not self:
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()
