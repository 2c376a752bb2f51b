"""The runtime of one rank: interprets the steps of a program; the only loop that runs micro-batches."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.distributed.fsdp import FSDPModule

from autopipe.documents.timeline import Lane, RankTimeline
from autopipe.errors import InputError, StepError
from autopipe.executor.data_parallel import GradientMeans
from autopipe.executor.ending import Ending
from autopipe.executor.flight import Flight
from autopipe.executor.mail import HEADER_TAG, Mail
from autopipe.executor.microbatch import Inputs, is_ready, signature, to_device
from autopipe.executor.misuse import misuse
from autopipe.executor.program import NO_PROGRAM, Program, ScheduleMaker, make_program
from autopipe.executor.record import Record
from autopipe.executor.request import Request
from autopipe.executor.seeds import Seeds
from autopipe.executor.sharded import hold_gradients, reduce_gradients
from autopipe.executor.whereabouts import Whereabouts
from autopipe.schedules.action import Action, Op
from autopipe.schedules.comms import Edge, Kind, Message, Step, edges_by_stage
from autopipe.stages.boundary import Route
from autopipe.stages.split import Stage
from autopipe.stages.split_backward import Deferred, input_gradients
from autopipe.transport.endpoint import Endpoint, Handle, TransportError

_LANES = {
    Kind.COMPUTE: Lane.COMPUTE,
    Kind.POST: Lane.RECEIVE,
    Kind.WAIT_RECEIVE: Lane.WAIT,
    Kind.SEND: Lane.SEND,
    Kind.WAIT_SEND: Lane.WAIT,
}
_LOSS_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Context = Callable[[], contextlib.AbstractContextManager[Any]]


class _Header(msgspec.Struct):
    """What the first rank tells the others about a step: micro-batch sizes and signature numbers."""

    sizes: tuple[int, ...]
    signatures: tuple[int, ...]
    problem: str = ""


class _Failure(msgspec.Struct):
    """Why a rank could not go on, and when that was."""

    at_ns: int
    sentence: str


class Runtime:
    """Runs the stages of one rank.

    Parameters
    ----------
    stages : sequence of Stage
        This rank's stages, on the endpoint's device.
    routes : sequence of Route
        What travels between all stages, the same on every rank.
    edges : sequence of Edge
        The same as ``routes``, as the schedule sees them.
    schedule, forward_schedule : function of the number of micro-batches
        What to run for training and for evaluation.
    micro_batches : int
        The micro-batches of a full mini-batch.
    inputs : Inputs, optional
        How the first stage's arguments are cut; by default every tensor of the batch's leading size is.
    ending : Ending
        What becomes of the last stage's output.
    seeds : Seeds
        From what the stages' random operations draw.
    boundary_dtype : torch.dtype, optional
        A smaller one in which floating-point tensors travel between ranks.
    splits_backward : bool
        Whether a backward that the schedule splits is split; if not, all of it runs in its first part.
    whereabouts : Whereabouts, optional
        Where the rank is told to be.
    """

    def __init__(
        self,
        *,
        stages: Sequence[Stage],
        stage_ranks: Sequence[int],
        routes: Sequence[Route],
        edges: Sequence[Edge],
        schedule: ScheduleMaker,
        forward_schedule: ScheduleMaker,
        micro_batches: int,
        endpoint: Endpoint,
        ending: Ending,
        seeds: Seeds,
        inputs: Inputs | None = None,
        boundary_dtype: torch.dtype | None = None,
        splits_backward: bool = True,
        whereabouts: Whereabouts | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.whereabouts = whereabouts if whereabouts is not None else Whereabouts()
        self.whereabouts.stage_ranks = tuple(stage_ranks)
        self.stages = {stage.index: stage for stage in stages}
        self._is_last = any(stage.is_last for stage in stages)
        self._stage_ranks = tuple(stage_ranks)
        self._edges = tuple(edges)
        self._near = edges_by_stage(edges, len(stage_ranks))
        self._incoming = {stage: tuple(r for r in routes if r.target == stage) for stage in self.stages}
        self._outgoing = {stage: tuple(r for r in routes if r.source == stage) for stage in self.stages}
        self._makers = {True: schedule, False: forward_schedule}
        self._micro_batches = micro_batches
        self.ending = ending
        self.seeds = seeds
        self.reads = inputs if inputs is not None else Inputs((), ())
        self._programs: dict[tuple[bool, int], Program] = {}
        self._signature_numbers: dict[Any, int] = {}
        self._known_signatures: set[int] = set()
        self._mail = Mail(endpoint, stage_ranks, routes, boundary_dtype)
        self._splits_backward = splits_backward
        self._record = Record(endpoint.device)
        group, modules = endpoint.replica_group, {stage.index: stage.module for stage in stages}
        self.means = GradientMeans(modules, group) if group is not None else None
        self._program = self._ready(True, micro_batches)

    def step(self, request: Request, *, context: Context) -> Tensor:
        """Run one mini-batch and return its loss, the same on every rank; gradients add to ``.grad``.

        Without a loss asked for it is 0; outputs asked for are then in ``ending.outputs`` of the last stage's rank.

        Raises
        ------
        StepError
            On every rank, with the first cause, if any rank failed.
        """
        self._record.begin()
        self.whereabouts.begin()
        self._flights: dict[tuple[int, int], Flight] = {}
        self._failure: _Failure | None = None
        self._poisoned = False
        self._passing: Handle | None = None
        self._request, self._context, self._training = request, context, request.training
        try:
            loss = self._steps()
        except TransportError as error:
            raise StepError(
                f"rank {self.endpoint.rank} waited for {self.whereabouts.place().what}: {error}. A peer has ended or "
                "hangs: look for the first error among the ranks' outputs, then start the run again."
            ) from error
        self.whereabouts.end_step()
        return loss

    def _steps(self) -> Tensor:
        header = self._agree()
        if not self._known_signatures.issuperset(header.signatures):
            self._known_signatures.update(header.signatures)
            self.whereabouts.expect_compilation()
        self._report = self.endpoint.open_sum(2 + len(_LOSS_DTYPES))
        self._mail.begin(header.signatures)
        self._program = self._ready(self._training, len(header.sizes)) if header.sizes else NO_PROGRAM
        self.whereabouts.compute("reading the mini-batch")
        try:
            self._load(header.sizes)
        except Exception as error:
            self._fail("reading the mini-batch", error)
        for step, label in self._program.steps:
            self._run(step, label)
        return self._finish()

    @property
    def has_split_backwards(self) -> bool:
        """Whether this rank's schedule splits backwards."""
        return self._ready(True, self._micro_batches).has_split_backwards

    def reset(self) -> None:
        """Forget what was learnt about messages; all ranks call it."""
        self._mail.forget()
        self._signature_numbers.clear()
        self._known_signatures.clear()

    def timeline(self) -> RankTimeline:
        """Return what this rank did in the last step."""
        return self._record.timeline(
            self.endpoint.rank,
            peak_in_flight=self._program.peak_in_flight,
            peak_outputs=self._mail.peak_outputs,
            peak_receive_buffers=self._mail.peak_receive_buffers,
        )

    def _ready(self, training: bool, micro_batches: int) -> Program:
        key = (training, micro_batches)
        if key not in self._programs:
            schedule = self._makers[training](micro_batches)
            edges = self._edges if training else tuple(Edge(e.source, e.target, False) for e in self._edges)
            self._programs[key] = make_program(schedule, edges, self.endpoint.rank)
        return self._programs[key]

    def _agree(self) -> _Header:
        """Return the step's header: the first rank reads its inputs, the others hear from the rank before."""
        rank, size, first = self.endpoint.rank, self.endpoint.size, self._stage_ranks[0]
        problem: Exception | None = None
        if rank == first:
            try:
                header = self._read_inputs()
            except Exception as error:
                problem, header = error, _Header((), (), str(error))
        else:
            self.whereabouts.wait("the other ranks, to begin the step", peer=(rank - 1) % size)
            note = self.endpoint.receive_note(peer=(rank - 1) % size, tag=HEADER_TAG)
            header = msgspec.json.decode(note, type=_Header)
        if (rank + 1) % size != first:
            note = msgspec.json.encode(header)
            self._passing = self.endpoint.send_note(note, peer=(rank + 1) % size, tag=HEADER_TAG)
        if problem is not None and self.endpoint.replicas == 1:
            raise problem
        if header.problem and self.endpoint.replicas == 1:
            raise StepError(f"rank {first} could not use the step's inputs: {header.problem}")
        if problem is not None:
            # The other replicas are at work: this one runs no micro-batch and says why when the step ends.
            self._fail("reading the mini-batch", problem)
        return header

    def _read_inputs(self) -> _Header:
        args, kwargs = self._request.args, self._request.kwargs
        sizes = self.reads.sizes(args, kwargs, self._micro_batches, may_be_empty=self.endpoint.replicas > 1)
        self._inputs = self.reads.cut(args, kwargs, sizes)
        keys = [(self._training, self._request.setting, signature(part)) for part in self._inputs]
        numbers = (self._signature_numbers.setdefault(key, len(self._signature_numbers)) for key in keys)
        return _Header(sizes, tuple(numbers))

    def _load(self, sizes: tuple[int, ...]) -> None:
        """Cut what this rank reads of the mini-batch into micro-batches on its device."""
        device, request = self.endpoint.device, self._request
        args, kwargs = request.args, request.kwargs
        if 0 in self.stages and not all(is_ready(value, device) for value in (*args, *kwargs.values())):
            self._inputs = self.reads.cut(to_device(args, device), to_device(kwargs, device), sizes)
        if self._is_last:
            self.ending.begin(request, sizes)

    def _run(self, step: Step, label: str) -> None:
        """Carry out one step of the program and stamp it."""
        lane = _LANES[step.kind]
        start = self._record.stamp(lane)
        if step.kind is Kind.COMPUTE:
            assert step.action is not None
            self.whereabouts.compute(step)
            self._compute(step.action)
        else:
            self.whereabouts.wait(step)
            message = _message(step)
            if step.kind is Kind.POST:
                self._mail.post(message)
            elif step.kind is Kind.WAIT_RECEIVE:
                self._mail.await_arrival(message)
            elif step.kind is Kind.SEND:
                self._mail.send(message)
            else:
                self._mail.await_sent(message)
        self._record.add(lane, label, start)

    def _compute(self, action: Action) -> None:
        """Run an action; if it fails, or what it reads could not be made, say so in what it sends."""
        exchange = self._program.exchanges[action]
        received = {message: self._mail.take(message) for message in exchange.reads}
        self._poisoned = self._poisoned or any(values is None for values in received.values())
        made: dict[Message, list[Any]] = {}
        if not self._poisoned:
            try:
                made = self._act(action, received)
            except Exception as error:
                self._fail(action, self._misuse(action, error) or error)
        for message in exchange.writes:
            try:
                self._mail.put(message, made.get(message))
            except InputError as error:
                self._fail(action, error)
                self._mail.put(message, None)
        if action.op is not Op.FORWARD:
            for message in received:
                self._mail.free(message)
        if action.op in (Op.BACKWARD, Op.WEIGHT_GRAD):
            for message in exchange.forward_reads:
                self._mail.free(message)
        if action == self._program.last_backwards.get(action.stage):
            self._complete(action.stage)

    def _misuse(self, action: Action, error: Exception) -> InputError | None:
        """Return what was wrong with the model's arguments, where that is why an action failed."""
        if not isinstance(error, TypeError) or action.op is not Op.FORWARD or action.stage != 0:
            return None
        return misuse(self.stages[0].module, *self._inputs[action.micro_batch])

    def _act(self, action: Action, received: dict[Message, list[Any] | None]) -> dict[Message, list[Any]]:
        """Compute an action and return what it sends."""
        self.seeds.micro_batch = self.endpoint.replica * self._micro_batches + action.micro_batch
        if action.op is Op.FORWARD:
            return self._forward(action, received)
        if action.op is Op.WEIGHT_GRAD:
            deferred = self._flights.pop((action.stage, action.micro_batch)).deferred
            assert deferred is not None
            deferred.run()
            return {}
        return self._backward(action, received)

    def _forward(self, action: Action, received: dict[Message, list[Any] | None]) -> dict[Message, list[Any]]:
        """Run a stage on one micro-batch and return what it sends."""
        stage, i = self.stages[action.stage], action.micro_batch
        flight = Flight()
        with torch.set_grad_enabled(self._training), self._context():
            if stage.index == 0:
                args, kwargs = self._inputs[i]
            else:
                values = self._admit(flight, stage.index, i, received)
                args, kwargs = tuple(values[name] for name in stage.inputs), {}
            if stage.is_last:
                self.ending.run(flight, stage.module, args, kwargs, i)
                output = ()
            else:
                output = stage.module(*args, **kwargs)
        if self._training:
            self._flights[stage.index, i] = flight
        outputs: dict[str, Any] = dict(zip(stage.outputs, output, strict=True))
        if self._training:
            self._keep_edges(flight, stage.index, outputs)
        return {
            Message(route.source, route.target, i): [outputs[name] for name in route.names]
            for route in self._outgoing[stage.index]
        }

    def _admit(self, flight: Flight, stage: int, i: int, received: dict[Message, list[Any] | None]) -> dict[str, Any]:
        """Return a stage's input values by name, those with gradients joined to its autograd graph."""
        values: dict[str, Any] = {}
        trainable: list[str] = []
        for route in self._incoming[stage]:
            values.update(zip(route.names, received[Message(route.source, stage, i)] or (), strict=True))
            trainable += self._mail.gradient_names(route.source, stage, i)
        if self._training:
            flight.admitted = tuple(trainable)
            values.update(zip(trainable, flight.entry.admit([values[name] for name in trainable]), strict=True))
        return values

    def _keep_edges(self, flight: Flight, stage: int, outputs: dict[str, Any]) -> None:
        """Keep where the gradients of ``outputs`` go in, so that the tensors themselves can be freed once sent."""
        answered = {edge.target for edge in self._near[stage] if edge.source == stage and edge.gradient}
        for route in self._outgoing[stage]:
            for name in route.names:
                value = outputs[name]
                if not isinstance(value, Tensor) or not value.requires_grad:
                    continue
                if route.target not in answered:
                    raise InputError(
                        f"value {name} needs a gradient now and needed none when the model was recorded: a parameter "
                        "was unfrozen since. Record and plan the model anew."
                    )
                flight.edges[name] = get_gradient_edge(value)

    def _backward(self, action: Action, received: dict[Message, list[Any] | None]) -> dict[Message, list[Any]]:
        """Run a stage's backward, or its input-gradient part, for one micro-batch and return what it sends."""
        stage, i = action.stage, action.micro_batch
        flight = self._flights[stage, i] if action.op is Op.INPUT_GRAD else self._flights.pop((stage, i))
        gradients: dict[str, Tensor] = {}
        # A plain backward meets the later reader first, so gradients are added from the last stage to the first.
        for message in sorted(received, key=lambda message: -message.source):
            names = self._mail.gradient_names(stage, message.source, i)
            for name, gradient in zip(names, received[message] or (), strict=True):
                if gradient is not None:
                    gradients[name] = gradients[name] + gradient if name in gradients else gradient
        if self.stages[stage].is_last and flight.loss is None:
            flight.deferred = Deferred([])
            return {message: self._mail.zeros(message) for message in self._program.exchanges[action].writes}
        roots, enter = [flight.edges[name] for name in gradients], list(gradients.values())
        if flight.loss is not None:
            if not flight.loss.requires_grad:
                raise InputError("the loss depends on no trainable parameter: nothing to train. Unfreeze some.")
            roots.append(get_gradient_edge(flight.loss))
            enter.append(torch.ones_like(flight.loss))
        flight.edges, flight.loss = {}, None
        flight.deferred = Deferred([])
        module = self.stages[stage].module
        hold_gradients(module)
        splits = self._splits_backward and not isinstance(module, FSDPModule)
        if action.op is Op.INPUT_GRAD and splits and roots:
            flight.deferred = input_gradients(roots, enter, flight.entry.leaves)
        elif roots:
            torch.autograd.backward(roots, enter)
        entered = dict(zip(flight.admitted, flight.entry.gradients, strict=True))
        return {
            Message(stage, route.source, i, True): [
                entered[name] for name in self._mail.gradient_names(route.source, stage, i)
            ]
            for route in self._incoming[stage]
        }

    def _fail(self, where: str | Action, error: Exception) -> None:
        """Keep the first failure; from here on this rank only keeps the order of messages.

        Raises
        ------
        Exception
            ``error`` itself, where stages are sharded: replicas then wait for parts of parameters that a rank which
            computes nothing does not give, so that the step cannot be ended together.
        """
        self._poisoned = True
        if any(isinstance(stage.module, FSDPModule) for stage in self.stages.values()):
            raise error
        if self._failure is None:
            stage = f" ({type(error).__name__})" if not isinstance(error, InputError) else ""
            sentence = f"rank {self.endpoint.rank} failed in {where}{stage}: {str(error).rstrip('.')}"
            if isinstance(where, Action):
                sentence += f". {where} is {where.words}"
            self._failure = _Failure(time.time_ns(), sentence)
            self._cause = error

    def _complete(self, stage: int) -> None:
        """Let the gradients of a stage be averaged over its replicas, after its last backward of the step."""
        if self.means is not None:
            self._average(lambda means: means.stage_done(stage))
        if not self._poisoned:
            reduce_gradients(self.stages[stage].module)

    def _average(self, call: Callable[[GradientMeans], None]) -> None:
        """Let the replicas' gradients be averaged, whether or not this rank has failed: the others wait for it."""
        assert self.means is not None
        self.whereabouts.wait("the other replicas, to average gradients")
        try:
            call(self.means)
        except TransportError:
            raise
        except Exception as error:
            self._fail("averaging gradients", error)

    def _finish(self) -> Tensor:
        """Return the step's loss on every rank, or raise the first failure on every rank."""
        report = torch.zeros(2 + len(_LOSS_DTYPES), dtype=torch.float64)
        self.whereabouts.compute("adding up the losses")
        if self._is_last and not self._poisoned:
            try:
                total = self.ending.finish()
                if total is not None:
                    report[1] = total.to("cpu", torch.float64)
                    report[2 + _LOSS_DTYPES.index(total.dtype)] = 1.0
            except Exception as error:
                self._fail("adding up its micro-batches", error)
        self.whereabouts.wait("the other ranks, to end the step")
        if self._is_last:
            self.ending.settle()
        if self.means is not None and self._training:
            self._average(GradientMeans.finish)
        report[0] = float(self._failure is not None)
        try:
            if self._passing is not None:
                self._passing.wait()
            start = self._record.stamp(Lane.WAIT)
            failed, loss, *dtypes = self._report.finish(report)
            self._record.add(Lane.WAIT, "end of step", start)
            if failed == 0:
                return loss.to(self.endpoint.device, _LOSS_DTYPES[int(torch.stack(dtypes).argmax())])
            notes = self.endpoint.gather_notes(msgspec.json.encode(self._failure))
        finally:
            self._flights.clear()
        failures = [msgspec.json.decode(note, type=_Failure | None) for note in notes]
        first = min((failure for failure in failures if failure is not None), key=lambda failure: failure.at_ns)
        cause = self._cause if self._failure is not None and first == self._failure else None
        raise StepError(
            f"{first.sentence}. Every rank stopped this step together; its gradients are incomplete: "
            "call pipe.reset() and optimizer.zero_grad(), then go on, or end the run."
        ) from cause


def _message(step: Step) -> Message:
    assert step.message is not None
    return step.message
