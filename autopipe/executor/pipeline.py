"""A `Pipeline` trains a model in stages: the same lines on every rank, the same numbers as the plain model."""

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn

from autopipe.checkpoints.whole_file import write_state
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.timeline import RankTimeline, Timeline
from autopipe.errors import InputError
from autopipe.executor.agreement import agree_on
from autopipe.executor.build import build_rank, over_same_parameters, rank_pairs, tensors_of_ranks
from autopipe.executor.checkpoint import Checkpointer, Optimizers, Progress, Restored, Trained, several
from autopipe.executor.deadlines import Deadlines
from autopipe.executor.ending import take_outputs
from autopipe.executor.judgement import first_cause
from autopipe.executor.launch import ThreadRanks, join_group, local_devices, under_torchrun
from autopipe.executor.layout import Layout, check_size, rank_names
from autopipe.executor.loader import until_first_end
from autopipe.executor.norms import parameter_norms
from autopipe.executor.rank import Rank, copy_stand_ins
from autopipe.executor.record import joined
from autopipe.executor.replica_parts import divide
from autopipe.executor.request import Request, unpacked
from autopipe.executor.saving import Saving
from autopipe.executor.seeds import draw_seed, kept_generators
from autopipe.executor.shares import Reduction
from autopipe.executor.state import gather_output, gather_state, load_full, stage_state
from autopipe.executor.watchdog import Watchdog
from autopipe.executor.whereabouts import Doing, Whereabouts
from autopipe.stages.autocast import autocast_state, no_autocast
from autopipe.stages.compilation import Compilation
from autopipe.stages.loss import LossFunction
from autopipe.stages.materialise import Materialise
from autopipe.stages.recompute import Policy
from autopipe.transport.distributed import DistributedEndpoint
from autopipe.transport.endpoint import Endpoint


class Pipeline:
    """A model cut into stages that train together; make one with `autopipe.pipeline`.

    Under torchrun every process holds one rank, and every method is called on every rank. In one process
    the ranks are threads, and every method is called once.

    Attributes
    ----------
    rank, replica : int
        This process's rank in its pipeline, and which replica that is; 0 where the ranks are threads.
    mesh : DeviceMesh or None
        The processes as a mesh with dimensions "pp" and "dp", if there are several replicas.
    is_first, is_last : bool
        Whether this process reads inputs, and targets.
    plan : Plan or None
    seed : int
        From it, the step, the micro-batch and the node come the seeds of all that draws random numbers
        (`autopipe.draw_seed`): masks do not depend on stages or schedule, and a step leaves the random state
        outside as it was.
    steps : int
        How many training steps have been taken: the number of the next one.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        graph: Graph,
        layout: Layout,
        *,
        loss_fn: LossFunction | None = None,
        plan: Plan | None = None,
        devices: Sequence[str | torch.device] | None = None,
        ranks: int | None = None,
        seed: int | None = None,
        reduction: str = "mean",
        recompute_policy: Policy | None = None,
        boundary_dtype: torch.dtype | None = None,
        compilation: Compilation | None = None,
        materialise: Materialise | None = None,
        deadlines: Deadlines | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self.plan = plan
        self.seed = torch.initial_seed() if seed is None else seed
        self.steps = 0
        self.layout = layout
        self._graph = graph
        self._threads: ThreadRanks | None = None
        self._watchdog: Watchdog | None = None
        deadlines = deadlines or Deadlines.chosen(None)

        draw_lock = threading.RLock()
        copies: list[fx.GraphModule] = [module]

        def build(endpoint: Endpoint) -> Rank:
            return build_rank(
                copies[endpoint.replica] if endpoint.shares_memory else module,
                graph,
                layout,
                endpoint,
                loss_fn=loss_fn,
                reduction=Reduction(reduction),
                draw_lock=draw_lock,
                recompute_policy=recompute_policy,
                boundary_dtype=boundary_dtype,
                compilation=compilation,
                whereabouts=Whereabouts(deadlines=deadlines) if watchdog is None else watchdog.whereabouts,
            )

        if under_torchrun():
            device = join_group()
            watchdog = self._watchdog = watchdog or Watchdog(deadlines)
            # Its threads hold no pipeline, so one that is dropped is no longer watched.
            weakref.finalize(self, watchdog.close)
            check_size(layout, dist.get_world_size())
            with watchdog.watching("the other ranks, to build the pipeline"):
                pairs = rank_pairs(graph, layout)
                endpoint = DistributedEndpoint(device, pairs, replicas=layout.replicas, order=layout.device_order)
                watchdog.attach(endpoint, rank_names(layout, endpoint))
                self.rank, self.replica, self.mesh = endpoint.rank, endpoint.replica, endpoint.mesh
                self.seed = agree_on(layout, graph, self.seed, endpoint)
            if materialise is not None:
                materialise(tensors_of_ranks(graph, layout, {endpoint.rank: device}))
            self._ranks: tuple[Rank, ...] = (build(endpoint),)
        else:
            self.rank, self.replica, self.mesh = 0, 0, None
            local = local_devices(devices, ranks)
            check_size(layout, len(local))
            local = tuple(local[number] for number in layout.device_order) or local
            if materialise is not None:
                materialise(tensors_of_ranks(graph, layout, dict(enumerate(local[:: layout.replicas]))))
            copies += [over_same_parameters(module) for _ in range(1, layout.replicas)]
            self._threads = ThreadRanks(local, replicas=layout.replicas)
            self._ranks = tuple(build(endpoint) for endpoint in self._threads.endpoints)
        self._checkpointer = Checkpointer(
            graph, layout, self._ranks[0].runtime.endpoint if self._threads is None else None
        )
        self._each(self._start, "the first replica's weights")
        held = [self.rank] if self._threads is None else list(range(layout.ranks))
        self.is_first = layout.stage_ranks[0] in held
        self.is_last = layout.stage_ranks[-1] in held

    def step(self, *inputs: Any, target: Any = None, weight: Any = None, scale: float = 1.0, **keywords: Any) -> Tensor:
        """Run forward and backward of one mini-batch and return its loss, the same on every rank.

        Each micro-batch's loss counts by its share: of ``weight``; else of the targets that its cross entropy
        does not leave out, where it takes the mean over one; else of the samples. Gradients add to ``.grad``,
        as with ``backward()``.

        Parameters
        ----------
        *inputs, **keywords
            The model's own arguments for the whole mini-batch, (batch, ...), or one `Arguments`; only the rank
            of the first stage reads them. `MicroBatches` in the place of an argument is cut already.
        target : tree of Tensor, optional
            What the loss function takes beside the output, (batch, ...); only the rank of the last stage
            reads it.
        weight : tree of Tensor, optional
            How much each sample or token counts, (batch, ...): the loss must be the mean over what counts.
            Only the rank of the last stage reads it.
        scale : float
            Multiplies the loss that is differentiated, not the one returned.

        Returns
        -------
        Tensor
            Shape (), detached.

        Raises
        ------
        StepError
            On every rank, if any rank failed; a loss whose means over valid targets do not add up is a failure.
        InputError
            If the inputs cannot be cut into micro-batches.
        """
        args, kwargs = self._arguments(inputs, keywords)
        return self._run(Request(args=args, kwargs=kwargs, target=target, weight=weight, scale=scale, training=True))

    def evaluate(self, *inputs: Any, target: Any = None, weight: Any = None, **keywords: Any) -> Tensor:
        """Run the forward of one mini-batch without gradients and return its loss, the same on every rank.

        Parameters are those of `step`. The training mode stays as it is: call `eval` first where that matters.
        """
        args, kwargs = self._arguments(inputs, keywords)
        return self._run(Request(args=args, kwargs=kwargs, target=target, weight=weight))

    def predict(self, *inputs: Any, everywhere: bool = False, **keywords: Any) -> Any:
        """Run the forward of one mini-batch without gradients, and return the model's output for it.

        The micro-batches' outputs are joined along the batch; numbers (a loss of the model's own) are averaged.

        Parameters
        ----------
        *inputs, **keywords
            As for `step`.
        everywhere : bool
            Return the output on every rank, on the CPU; by default only the rank of the last stage has it, and
            the others return None.
        """
        args, kwargs = self._arguments(inputs, keywords)
        self._run(Request(args=args, kwargs=kwargs, wants_loss=False, wants_outputs=True))
        output = take_outputs([rank.runtime.ending for rank in self._ranks])
        if not everywhere or self._threads is not None:
            return output
        with self._together("gathering the output"):
            return gather_output(output, self._ranks[0].runtime.endpoint)

    def batches(self, loader: Iterable[Any] | None) -> Iterator[Any]:
        """Yield what ``loader`` yields, until the first of all ranks' loaders ends. All ranks iterate.

        A rank that reads neither inputs nor targets may pass None, and is given None for each batch.

        Raises
        ------
        StepError
            If the loader of another rank failed.
        """
        if self._watchdog is None:
            return iter(loader or ())
        return until_first_end(loader, self._ranks[0].runtime.endpoint, self._watchdog.watching)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that this process trains, each once."""
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that this process trains, by their original names, each once."""
        for index, rank in enumerate(self._ranks):
            # Of a parameter tied over threads of one process only the owner's gets the gradient.
            yield from (rank.parameters if self._threads is None else self._counted(index)).items()

    @property
    def device(self) -> torch.device:
        """The device of this process's (first) rank."""
        return self._ranks[0].runtime.endpoint.device

    def modules(self) -> tuple[nn.Module, ...]:
        """Return this process's stages, in order, as ordinary modules."""
        stages = [stage for rank in self._ranks for stage in rank.runtime.stages.values()]
        return tuple(stage.module for stage in sorted(stages, key=lambda stage: stage.index))

    def train(self, mode: bool = True) -> "Pipeline":
        """Put all stages of this process in training mode."""
        for module in self.modules():
            module.train(mode)
        return self

    def eval(self) -> "Pipeline":
        """Put all stages of this process in evaluation mode."""
        return self.train(False)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm over all stages is at most ``max_norm``; return the norm before.

        A tied parameter counts once. All ranks call it.
        """
        total = self.get_total_norm(norm_type)
        torch.nn.utils.clip_grads_with_norm_(list(self.parameters()), max_norm, total)
        return total

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Average gradients over replicas with a communication hook of `DistributedDataParallel`. All ranks call it.

        Parameters
        ----------
        state
            What the hook takes first. Where it is None, or has a ``process_group`` that is None, the group of this
            rank's replicas takes that place.
        hook : function of (state, bucket) to a future
            For example `torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook`.

        Raises
        ------
        InputError
            If there is one replica, or replicas are threads.
        """
        group = self._ranks[0].runtime.endpoint.replica_group
        if group is None:
            raise InputError(
                "a communication hook averages gradients over replicas, and this pipeline is the only one: plan with "
                "more devices than stages, or leave the hook out."
            )
        group.register(state, hook)

    def get_total_norm(self, norm_type: float = 2.0) -> Tensor:
        """Return the norm of all gradients over all stages, a tied parameter counted once. All ranks call it."""
        listed = tuple(parameter for parameter in self._graph.parameters if not parameter.is_buffer)
        results = self._each(
            lambda rank: parameter_norms(listed, self._counted(rank), norm_type, self._ranks[rank].runtime.endpoint),
            "the other ranks' norms",
        )
        return torch.linalg.vector_norm(results[0], norm_type)

    def sum_over_ranks(self, number: float) -> float:
        """Return the sum of every rank's ``number``. All ranks call it; in one process it is ``number`` itself."""
        if self._threads is not None:
            return number
        part = torch.tensor([number], dtype=torch.float64)
        return float(self._each(lambda rank: self._ranks[rank].runtime.endpoint.open_sum(1).finish(part), "a sum")[0])

    def state_dict(self) -> dict[str, Tensor]:
        """Return this process's part of the model's state, under the original names."""
        state: dict[str, Tensor] = {}
        for rank in self._ranks[:: self.layout.replicas]:
            for stage in rank.runtime.stages.values():
                state.update(stage_state(stage.module, self._graph))
        return state

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole model's state on the CPU, under the original names. All ranks call it."""
        part = self.state_dict()
        if self._threads is not None:
            return gather_state(part, self._graph, None)
        with self._together("gathering the model's state"):
            return gather_state(part, self._graph, self._ranks[0].runtime.endpoint)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load this process's part from a state of the whole model.

        Raises
        ------
        MismatchError
            If a name is missing or a shape differs; nothing has been loaded then.
        """
        load_full(self.modules(), self._graph, state)

    def save_full(self, path: str | Path) -> None:
        """Write the whole model's state to one file. All ranks call it, rank 0 writes.

        Parameters
        ----------
        path : path
            Where its name ends in ``.safetensors`` it is such a file; else one that ``torch.load`` reads.
        """
        state = self.full_state_dict()
        if self.rank == 0 and self.replica == 0:
            write_state(state, path)
        if self._threads is None:
            with self._together("writing the model's state"):
                self._ranks[0].runtime.endpoint.gather_notes(b"saved")

    def save(
        self,
        folder: str | Path,
        *,
        optimizer: Optimizers = None,
        scheduler: Any = None,
        scaler: Any = None,
        step: int | None = None,
        data: Any = None,
        keep: int | None = None,
        in_background: bool = False,
    ) -> Saving:
        """Write a checkpoint, ``folder/step-00000100``, whole or not at all. All ranks call it.

        It holds parameters, buffers and the optimizer's state under the model's own names, so that a pipeline of any
        other split, or the plain model (`autopipe.load_checkpoint`), can go on from it. A crash while it is written
        leaves those before as they were. Gradients are not saved: call it after the optimizer's step.

        Parameters
        ----------
        folder : path
            On a file system that all machines share. It is made if need be.
        optimizer, scheduler : optional
            One, or a sequence of them. Other ranks' parameters are saved by those ranks.
        scaler : optional
            A gradient scaler.
        step : int, optional
            The number in the name; by default how many steps the pipeline has taken.
        data : optional
            Where the data is: an object with ``state_dict`` and ``load_state_dict``, such as a loader, or numbers,
            strings and lists or dictionaries of them; of each replica, what its first rank passes that is not None.
        keep : int, optional
            Remove all but so many of the newest checkpoints when this one is whole.
        in_background : bool
            Copy the state and return; a thread writes it while training goes on. The next `save` waits for it.

        Returns
        -------
        Saving
            ``wait()`` returns the checkpoint's path once it is whole.

        Raises
        ------
        InputError
            If something cannot be saved.
        DocumentError
            On every rank, if some rank could not write.
        """
        with self._together("saving a checkpoint"):
            return self._checkpointer.save(
                folder,
                self.state_dict(),
                dict(self.named_parameters()),
                Trained(optimizers=several(optimizer), schedulers=several(scheduler), scaler=scaler, data=data),
                Progress(step=self.steps if step is None else step, steps=self.steps, seed=self.seed),
                keep=keep,
                in_background=in_background,
            )

    def load(
        self,
        folder: str | Path,
        *,
        optimizer: Optimizers = None,
        scheduler: Any = None,
        scaler: Any = None,
        data: Any = None,
        random_state: bool = True,
        required: bool = True,
    ) -> Restored | None:
        """Go on from a checkpoint, in place, whatever pipeline saved it. All ranks call it.

        What random operations draw from (`seed`, `steps`) is restored, and with ``random_state`` the state of
        torch's generator for the CPU, with which loops draw their batches.

        Parameters
        ----------
        folder : path
            A checkpoint, or a folder of them, of which the newest that is whole is taken.
        optimizer, scheduler, scaler : optional
            As for `save`: made as they were then.
        data : optional
            An object whose ``load_state_dict`` is called.
        required : bool
            If not, None is returned where ``folder`` holds no checkpoint yet.

        Returns
        -------
        Restored
            ``step`` and ``data`` as they were saved, and the checkpoint's path.

        Raises
        ------
        MismatchError
            If it was saved from another model, or with another optimizer; nothing of the model has changed then.
        DocumentError
            If there is no checkpoint, it is damaged, or it lacks what is to be loaded.
        """
        with self._together("loading a checkpoint"):
            found = self._checkpointer.load(
                folder,
                self.state_dict(),
                dict(self.named_parameters()),
                Trained(optimizers=several(optimizer), schedulers=several(scheduler), scaler=scaler, data=data),
                give=self.load_state_dict,
                random_state=random_state,
                required=required,
            )
        if found is None:
            return None
        restored, progress = found
        self.steps, self.seed = progress.steps, progress.seed
        return restored

    def timeline(self) -> Timeline:
        """Return what every rank did in the last step. All ranks call it."""
        rows = self._each(lambda rank: self._ranks[rank].runtime.timeline(), "its own device")
        if self._threads is None:
            with self._together("gathering the timelines"):
                notes = self._ranks[0].runtime.endpoint.gather_notes(msgspec.json.encode(rows[0]))
            rows = tuple(msgspec.json.decode(note, type=RankTimeline) for note in notes)
        return joined(
            rows[:: self.layout.replicas], schedule=self.layout.schedule, micro_batches=self.layout.micro_batches
        )

    def reset(self) -> None:
        """Make the pipeline ready again after a step that failed. All ranks call it."""
        for rank in self._ranks:
            rank.runtime.reset()

    def close(self) -> None:
        """Finish a checkpoint, end thread-ranks and the watch over processes; a group stays the caller's."""
        self._checkpointer.finish()
        if self._threads is not None:
            self._threads.close()
        if self._watchdog is not None:
            self._watchdog.close()

    def __repr__(self) -> str:
        where = f"{len(self._ranks)} thread-ranks" if self._threads is not None else f"rank {self.rank}"
        if self.layout.replicas > 1:
            where += f" of {self.layout.replicas} replicas"
        return (
            f"Pipeline({self._graph.model}, {len(self.layout.stage_ranks)} stages, {self.layout.micro_batches} "
            f"micro-batches, {self.layout.schedule}, {where})"
        )

    def _run(self, request: Request) -> Tensor:
        if self._threads is not None:
            copy_stand_ins(self._ranks)

        devices = [rank.runtime.endpoint.device for rank in self._ranks]
        contexts = [autocast_state(device) for device in devices]
        parts = self._parts(request)
        for rank in self._ranks:
            rank.runtime.seeds.seed, rank.runtime.seeds.step = self.seed, self.steps
        # Threads of ranks begin without autocast; this thread, where it is the rank, is made to.
        with kept_generators(devices, draw_seed(self.seed, self.steps, 0, "step")), no_autocast(devices[0]):
            loss = self._each(
                lambda index: self._ranks[index].step(parts[index], context=contexts[index]),
                "the other ranks, to begin the step",
            )[0]
        self.steps += request.training
        return loss

    def _start(self, index: int) -> None:
        """Let this rank's replicas begin with equal parameters and buffers."""
        means = self._ranks[index].runtime.means
        if means is not None:
            means.copy_first_model()

    def _parts(self, request: Request) -> list[Request]:
        """Return what each rank of this process is asked for: thread-ranks of a replica share a part of the batch."""
        if self._threads is None or self.layout.replicas == 1:
            return [request] * len(self._ranks)
        parts = divide(request, self._ranks[0].runtime.reads, self.layout.replicas)
        return [parts[rank.runtime.endpoint.replica] for rank in self._ranks]

    def _arguments(self, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the model's arguments; refuse a call whose own keywords could be meant for the model."""
        args, kwargs = unpacked(inputs, keywords)
        rest = self._graph.arguments[len(args) :] if self.is_first and args is inputs else ()
        for name in rest:
            if name in ("target", "weight", "scale", "everywhere"):
                raise InputError(
                    f"the model has an argument called {name}, and step keeps that name for itself: pass the model's "
                    f"arguments as autopipe.Arguments(..., {name}=...)."
                )
        return args, kwargs

    def _each(self, call: Any, what: str) -> tuple[Any, ...]:
        """Return ``call(rank)`` of this process's ranks, which wait for ``what`` if for nothing more precise."""
        if self._watchdog is not None:
            with self._watchdog.watching(what):
                return (call(0),)
        assert self._threads is not None
        try:
            return self._threads.run(call, self._first_cause)
        finally:
            for rank in self._ranks:
                rank.runtime.whereabouts.leave()

    def _together(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Watch over a call of all processes that takes as long as it takes."""
        if self._watchdog is None:
            return contextlib.nullcontext()
        return self._watchdog.watching(what, doing=Doing.BUSY)

    def _first_cause(self) -> str | None:
        """Return which thread-rank hangs, and in what, if one does."""
        places = [rank.runtime.whereabouts.place() for rank in self._ranks]
        return first_cause(places, rank_names(self.layout, self._ranks[0].runtime.endpoint))

    def _counted(self, index: int) -> dict[str, nn.Parameter]:
        rank = self._ranks[index]
        if self._threads is not None and rank.runtime.endpoint.replica > 0:
            return {}
        mine = rank.runtime.endpoint.rank
        owners = {tie.name: tie.owner for tie in rank.tied.ties}
        return {name: p for name, p in rank.parameters.items() if owners.get(name, mine) == mine}
