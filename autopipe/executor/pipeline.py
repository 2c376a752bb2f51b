"""A `Pipeline` trains a model in stages: the same lines on every rank, the same numbers as the plain model."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, fx

from autopipe.documents.arguments import typed
from autopipe.documents.graph import Graph
from autopipe.documents.plan import Plan
from autopipe.documents.timeline import RankTimeline, Timeline
from autopipe.errors import InputError
from autopipe.executor.build import Recipe
from autopipe.executor.deadlines import Deadlines
from autopipe.executor.drift import THRESHOLD
from autopipe.executor.drift_watch import EVERY, DriftWatch
from autopipe.executor.ending import take_outputs
from autopipe.executor.launch import join_group, under_torchrun
from autopipe.executor.layout import Layout
from autopipe.executor.loader import until_first_end
from autopipe.executor.rank import copy_stand_ins
from autopipe.executor.record import joined
from autopipe.executor.replan import planned_again
from autopipe.executor.replica_parts import divide
from autopipe.executor.request import Request, unpacked
from autopipe.executor.resumable import Resumable
from autopipe.executor.same_batch import warn_of_other_batches
from autopipe.executor.seeds import draw_seed, kept_generators
from autopipe.executor.shares import Reduction
from autopipe.executor.start import start_process, start_threads
from autopipe.executor.state import gather_output
from autopipe.executor.watchdog import Watchdog
from autopipe.executor.whereabouts import Doing
from autopipe.stages.autocast import autocast_setting, autocast_state, no_autocast
from autopipe.stages.compilation import Compilation
from autopipe.stages.loss import LossFunction
from autopipe.stages.materialise import Materialise
from autopipe.stages.recompute import Policy


class Pipeline(Resumable):
    """A model cut into stages that train together; make one with `autopipe.pipeline`.

    Under torchrun every process holds one rank, and every method is called on every rank. In one process
    the ranks are threads, and every method is called once.

    Attributes
    ----------
    rank, replica : int
        This process's rank in its pipeline, and which replica that is; 0 where the ranks are threads.
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
        if reduction not in list(Reduction):
            raise InputError(f"reduction={reduction!r} is neither 'mean' nor 'sum': pass what the loss function does.")
        if seed is not None and not -(1 << 63) <= seed < 1 << 64:
            raise InputError(f"seed={seed} is no seed that torch takes: give one of 64 bits.")
        recipe = Recipe(
            loss_fn=loss_fn,
            reduction=Reduction(reduction),
            recompute_policy=recompute_policy,
            boundary_dtype=boundary_dtype,
            compilation=compilation,
        )
        deadlines = deadlines or Deadlines.chosen(None)
        seed = torch.initial_seed() if seed is None else seed
        if under_torchrun():
            device = join_group()
            watchdog = watchdog or Watchdog(deadlines)
            # Its threads hold no pipeline, so one that is dropped is no longer watched.
            weakref.finalize(self, watchdog.close)
            held, seed = start_process(
                module, graph, layout, recipe, seed=seed, device=device, watchdog=watchdog, materialise=materialise
            )
        else:
            held = start_threads(
                module,
                graph,
                layout,
                recipe,
                devices=devices,
                ranks=ranks,
                deadlines=deadlines,
                materialise=materialise,
            )
        super().__init__(graph, layout, held, seed=seed)
        self.plan = plan
        self._drift: DriftWatch | None = None
        self._compared = self._ranks.endpoint is None
        self._ranks.each(self._start, "the first replica's weights")

    @typed
    def step(self, *inputs: Any, target: Any = None, weight: Any = None, scale: float = 1.0, **keywords: Any) -> Tensor:
        """Run forward and backward of one mini-batch and return its loss, the same on every rank.

        The backward has run when it returns, so the loss that it returns has none: follow it with ``optimizer.step()``.
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
        loss = self._run(Request(args=args, kwargs=kwargs, target=target, weight=weight, scale=scale, training=True))
        if self._drift is not None:
            self._drift.after_step()
        return loss

    def evaluate(self, *inputs: Any, target: Any = None, weight: Any = None, **keywords: Any) -> Tensor:
        """Run the forward of one mini-batch without gradients and return its loss, the same on every rank.

        Parameters are those of `step`. The training mode stays as it is: call `eval` first where that matters.
        """
        args, kwargs = self._arguments(inputs, keywords)
        return self._run(Request(args=args, kwargs=kwargs, target=target, weight=weight))

    @typed
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
        output = take_outputs([rank.runtime.ending for rank in self._ranks.all])
        if not everywhere or self._ranks.endpoint is None:
            return output
        with self._ranks.together("gathering the output"):
            return gather_output(output, self._ranks.endpoint)

    @typed
    def batches(self, loader: Iterable[Any] | None) -> Iterator[Any]:
        """Yield what ``loader`` yields, until the first of all ranks' loaders ends. All ranks iterate.

        A rank that reads neither inputs nor targets may pass None, and is given None for each batch.

        Raises
        ------
        StepError
            If the loader of another rank failed.
        """
        if self._ranks.endpoint is None:
            return iter(() if loader is None else loader)
        waiting = functools.partial(self._ranks.together, doing=Doing.WAITING)
        return until_first_end(loader, self._ranks.endpoint, waiting)

    def timeline(self) -> Timeline:
        """Return what every rank did in the last step. All ranks call it."""
        return self._joined(self._rows()[:: self.layout.replicas])

    @typed
    def watch_drift(self, *, every: int = EVERY, threshold: float = THRESHOLD) -> DriftWatch:
        """Compare every so many steps with the plan while training; a rank that has become slow is warned of.

        The first rank warns, with `warnings.warn`, when a rank falls behind the fastest by more than the threshold.
        All ranks call it.

        Parameters
        ----------
        every : int
            Every so many steps all ranks tell each other when they did what; the last three of these count.
        threshold : float
            As a share of what was planned.

        Returns
        -------
        DriftWatch
            ``report`` is what was last found; ``offer(profile)`` returns a plan for the measured speeds.

        Raises
        ------
        InputError
            If the pipeline has no plan.
        """
        if self.plan is None:
            raise InputError("this pipeline has no plan, so there is nothing to drift from: make it with one.")
        self._drift = DriftWatch(
            self.plan,
            lambda: self._joined(self._rows()),
            self._agreed_plan,
            every=every,
            threshold=threshold,
            is_speaker=self.rank == 0 and self.replica == 0,
        )
        return self._drift

    def reset(self) -> None:
        """Make the pipeline ready again after a step that failed. All ranks call it."""
        for rank in self._ranks.all:
            rank.runtime.reset()

    def close(self) -> None:
        """Finish a checkpoint, end thread-ranks, the watch over processes and the groups made for it; others stay."""
        self._checkpointer.finish()
        self._ranks.close()

    def __repr__(self) -> str:
        threads = self._ranks.endpoint is None
        where = f"{len(self._ranks.all)} thread-ranks" if threads else f"rank {self.rank}"
        if self.layout.replicas > 1:
            where += f" of {self.layout.replicas} replicas"
        return (
            f"Pipeline({self._graph.model}, {len(self.layout.stage_ranks)} stages, {self.layout.micro_batches} "
            f"micro-batch{'es' if self.layout.micro_batches != 1 else ''}, {self.layout.schedule}, {where})"
        )

    def _run(self, request: Request) -> Tensor:
        ranks = self._ranks.all
        if self._ranks.endpoint is None:
            copy_stand_ins(ranks)
        if request.training and not self._compared:
            self._compare(request)
        devices = [rank.runtime.endpoint.device for rank in ranks]
        contexts = [autocast_state(device) for device in devices]
        modes = tuple(module.training for module in self.modules())
        request = dataclasses.replace(request, setting=(autocast_setting(devices[0]), modes))
        parts = self._parts(request)
        for rank in ranks:
            rank.runtime.seeds.seed, rank.runtime.seeds.step = self.seed, self.steps
        # Threads of ranks begin without autocast; this thread, where it is the rank, is made to.
        with kept_generators(devices, draw_seed(self.seed, self.steps, 0, "step")), no_autocast(devices[0]):
            loss = self._ranks.each(
                lambda index: ranks[index].step(parts[index], context=contexts[index]),
                "the other ranks, to begin the step",
            )[0]
        self.steps += request.training
        return loss

    def _rows(self) -> tuple[RankTimeline, ...]:
        """Return what every rank of every replica did in the last step, in the plan's order."""
        rows = self._ranks.each(lambda index: self._ranks.all[index].runtime.timeline(), "its own device")
        if self._ranks.endpoint is None:
            return rows
        with self._ranks.together("gathering the timelines"):
            notes = self._ranks.endpoint.gather_notes(msgspec.json.encode(rows[0]))
        return tuple(msgspec.json.decode(note, type=RankTimeline) for note in notes)

    def _joined(self, rows: tuple[RankTimeline, ...]) -> Timeline:
        return joined(rows, schedule=self.layout.schedule, micro_batches=self.layout.micro_batches)

    def _agreed_plan(self, make: Callable[[int], Plan]) -> Plan:
        """Return the plan that the first rank makes for all."""
        with self._ranks.together("planning anew"):
            return planned_again(make, self.layout.ranks * self.layout.replicas)

    def _compare(self, request: Request) -> None:
        """See that the processes of the first and the last stage were given one batch."""
        assert self._ranks.endpoint is not None
        self._compared = True
        with self._ranks.together("the other ranks, to compare their batches", doing=Doing.WAITING):
            stage_ranks = self.layout.stage_ranks
            warn_of_other_batches(request, self._ranks.endpoint, first=stage_ranks[0], last=stage_ranks[-1])

    def _start(self, index: int) -> None:
        """Let this rank's replicas begin with equal parameters and buffers."""
        means = self._ranks.all[index].runtime.means
        if means is not None:
            means.copy_first_model()

    def _parts(self, request: Request) -> list[Request]:
        """Return what each rank of this process is asked for: thread-ranks of a replica share a part of the batch."""
        if self._ranks.endpoint is not None or self.layout.replicas == 1:
            return [request] * len(self._ranks.all)
        parts = divide(request, self._ranks.first.runtime.reads, self.layout.replicas)
        return [parts[rank.runtime.endpoint.replica] for rank in self._ranks.all]

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
