"""What a process holds of a model in stages: its modules and parameters, their gradients' norm, their state."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from autopipe.checkpoints.whole_file import write_state
from autopipe.documents.arguments import typed
from autopipe.documents.graph import Graph
from autopipe.errors import InputError
from autopipe.executor.layout import Layout
from autopipe.executor.norms import parameter_norms
from autopipe.executor.ranks import Ranks
from autopipe.executor.state import gather_state, load_full, stage_state


class HeldModel:
    """The part of a model that this process's ranks hold, under the names of the whole; `Pipeline` trains it.

    Attributes
    ----------
    rank, replica : int
        This process's rank in its pipeline, and which replica that is; 0 where the ranks are threads.
    is_first, is_last : bool
        Whether this process reads inputs, and targets.
    """

    def __init__(self, graph: Graph, layout: Layout, ranks: Ranks) -> None:
        self.layout = layout
        self._graph = graph
        self._ranks = ranks
        endpoint = ranks.endpoint
        self.rank, self.replica = (endpoint.rank, endpoint.replica) if endpoint is not None else (0, 0)
        self.is_first = layout.stage_ranks[0] in ranks.numbers
        self.is_last = layout.stage_ranks[-1] in ranks.numbers

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that this process trains, each once.

        Under torchrun these are the ones of its stages: an optimizer wants no more, but a norm over them is not the
        model's. Clip with `clip_grad_norm_`, not with `torch.nn.utils.clip_grad_norm_`.
        """
        return (parameter for _, parameter in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that this process trains, by their original names, each once."""
        if self._ranks.endpoint is not None:
            yield from self._ranks.first.parameters.items()
            return
        for index in range(len(self._ranks.all)):
            # Of a parameter tied over threads of one process only the owner's gets the gradient.
            yield from self._ranks.counted(index).items()

    @property
    def mesh(self) -> DeviceMesh | None:
        """The processes as a mesh with dimensions "pp" and "dp", if there are several replicas; None once closed."""
        return self._ranks.mesh

    @property
    def device(self) -> torch.device:
        """The device of this process's (first) rank."""
        return self._ranks.first.runtime.endpoint.device

    def modules(self) -> tuple[nn.Module, ...]:
        """Return this process's stages, in order, as ordinary modules."""
        stages = [stage for rank in self._ranks.all for stage in rank.runtime.stages.values()]
        return tuple(stage.module for stage in sorted(stages, key=lambda stage: stage.index))

    @typed
    def train(self, mode: bool = True) -> Self:
        """Put all stages of this process in training mode."""
        for module in self.modules():
            module.train(mode)
        return self

    def eval(self) -> Self:
        """Put all stages of this process in evaluation mode."""
        return self.train(False)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: a pipeline has no output to differentiate; `step`, `evaluate` and `predict` are what it is called by.

        Raises
        ------
        InputError
            Always; it names the three.
        """
        raise InputError(
            "a pipeline is not called like a model: pipe.predict(x) returns its output, pipe.evaluate(x, target=y) its "
            "loss, and pipe.step(x, target=y) is forward and backward of a training step."
        )

    def to(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: each rank's stages are on its device already, and stay there.

        Raises
        ------
        InputError
            Always; it says what chooses devices.
        """
        raise InputError(
            "a pipeline stays where it is, each rank's stages on its own device: choose devices with "
            "autopipe.pipeline(..., devices=[...]) or torchrun. It brings the inputs of a step there itself."
        )

    cuda = to

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters that this process trains; with False they become zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter.grad)

    @typed
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm over all stages is at most ``max_norm``; return the norm before.

        Under torchrun `torch.nn.utils.clip_grad_norm_` would know the gradients of this rank alone: every rank would
        scale by another number. A tied parameter counts once. All ranks call it.
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
        group = self._ranks.first.runtime.endpoint.replica_group
        if group is None:
            raise InputError(
                "a communication hook averages gradients over replicas, and this pipeline is the only one: plan with "
                "more devices than stages, or leave the hook out."
            )
        group.register(state, hook)

    @typed
    def get_total_norm(self, norm_type: float = 2.0) -> Tensor:
        """Return the norm of all gradients over all stages, a tied parameter counted once. All ranks call it."""
        norm_type = float(norm_type)
        listed = tuple(parameter for parameter in self._graph.parameters if not parameter.is_buffer)

        def norms(index: int) -> Tensor:
            endpoint = self._ranks.all[index].runtime.endpoint
            return parameter_norms(listed, self._ranks.counted(index), norm_type, endpoint)

        results = self._ranks.each(norms, "the other ranks' norms")
        norms_of_all = results[0]
        return torch.linalg.vector_norm(norms_of_all, norm_type) if norms_of_all.numel() else norms_of_all.sum()

    @typed
    def sum_over_ranks(self, number: float) -> float:
        """Return the sum of every rank's ``number``. All ranks call it; in one process it is ``number`` itself."""
        endpoint = self._ranks.endpoint
        if endpoint is None:
            return number
        part = torch.tensor([number], dtype=torch.float64)
        return float(self._ranks.each(lambda _: endpoint.open_sum(1).finish(part), "a sum")[0])

    def state_dict(self) -> dict[str, Tensor]:
        """Return this process's part of the model's state, under the original names."""
        state: dict[str, Tensor] = {}
        for rank in self._ranks.all[:: self.layout.replicas]:
            for stage in rank.runtime.stages.values():
                state.update(stage_state(stage.module, self._graph))
        return state

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole model's state on the CPU, under the original names. All ranks call it."""
        with self._ranks.together("gathering the model's state, which all ranks call"):
            return gather_state(self.state_dict(), self._graph, self._ranks.endpoint)

    @typed
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this process's part from a state of the whole model.

        Raises
        ------
        MismatchError
            If a name is missing or a shape differs; nothing has been loaded then.
        """
        load_full(self.modules(), self._graph, state)

    @typed
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
        if self._ranks.endpoint is not None:
            with self._ranks.together("writing the model's state, which all ranks call"):
                self._ranks.endpoint.gather_notes(b"saved")
