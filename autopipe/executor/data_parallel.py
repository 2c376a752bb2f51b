"""Data parallel: after a stage's last backward of the step its gradients are averaged over the replicas."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from autopipe.executor.bucket import Bucket, fill_buckets
from autopipe.transport.endpoint import Endpoint, Mean, ReplicaGroup

BUCKET_BYTES = 25 * 2**20


def replica_total(endpoint: Endpoint) -> Callable[[float], float]:
    """Return a function that sums a number over the same rank of all replicas, which all of them call."""
    group = endpoint.replica_group
    if group is None:
        return float
    return lambda number: float(group.open_sum(torch.tensor([number], dtype=torch.float64)).finish())


class GradientMeans:
    """Averages what one step adds to the gradients of one rank over its replicas, bucket by bucket.

    Buckets leave in the order of falling stages on every replica, whatever the order in which backwards end.
    Gradients of earlier steps are set aside first and added at the end. A parameter that
    `torch.distributed.fsdp.fully_shard` has sharded over the replicas is left to it.

    Parameters
    ----------
    modules : mapping
        Stage index -> this rank's stage.
    """

    def __init__(self, modules: Mapping[int, nn.Module], group: ReplicaGroup) -> None:
        self.group = group
        self._modules = dict(sorted(modules.items(), reverse=True))
        parts = dict.fromkeys(part for module in self._modules.values() for part in module.modules())
        self._saved_buffers = [
            (part, name) for part in parts for name in part._buffers if name not in part._non_persistent_buffers_set
        ]
        self._before: list[tuple[nn.Parameter, Tensor | None]] = []

    def copy_first_model(self) -> None:
        """Make parameters and buffers those of the first replica."""
        for module in self._modules.values():
            self.group.copy_first([*module.parameters(), *module.buffers()])

    def copy_first_buffers(self) -> None:
        """Make the buffers that are saved with the model those of the first replica, as `DistributedDataParallel`."""
        for module in self._modules.values():
            saved = module.state_dict(keep_vars=True).values()
            buffers = [
                tensor for tensor in saved if isinstance(tensor, Tensor) and not isinstance(tensor, nn.Parameter)
            ]
            if buffers:
                self.group.copy_first(buffers)

    def begin(self) -> None:
        """Set earlier gradients aside."""
        parameters = self._by_stage()
        self._before = [(parameter, parameter.grad) for several in parameters.values() for parameter in several]
        for parameter, _ in self._before:
            parameter.grad = None
        self._plan = {stage: fill_buckets(ps, limit_bytes=BUCKET_BYTES) for stage, ps in parameters.items()}
        self._waiting = list(self._plan)
        self._done: set[int] = set()
        self._buckets: list[tuple[Bucket, Mean]] = []

    def stage_done(self, stage: int) -> None:
        """Say that a stage has run its last backward: its buckets leave when it is their turn."""
        self._done.add(stage)
        while self._waiting and self._waiting[0] in self._done:
            for parameters in self._plan[self._waiting.pop(0)]:
                number = len(self._buckets)
                is_last = number + 1 == sum(map(len, self._plan.values()))
                bucket = Bucket(parameters, index=number, is_last=is_last)
                self._buckets.append((bucket, self.group.mean(bucket)))

    def finish(self) -> None:
        """Send what has not left and give every parameter the mean, if any replica has a gradient for it."""
        for stage in list(self._waiting):
            self.stage_done(stage)
        present = [float(is_there) for bucket, _ in self._buckets for is_there in bucket.present]
        if not present:
            return
        holders = iter(self.group.open_sum(torch.tensor(present, dtype=torch.float64)).finish().tolist())
        for bucket, mean in self._buckets:
            flat = mean.wait()
            wanted = [next(holders) > 0 for _ in bucket.present]
            if flat is not None:
                bucket.give_back(flat, wanted)
        self._buckets.clear()

    def end(self) -> None:
        """Add the gradients that were set aside."""
        for parameter, before in self._before:
            if before is not None:
                parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)
        self._before.clear()

    def restore(self) -> None:
        """Put the gradients that were set aside in the place of those of a step that failed."""
        for parameter, before in self._before:
            parameter.grad = before
        self._before.clear()

    def _by_stage(self) -> dict[int, list[nn.Parameter]]:
        """Return what each stage is the last to use, in the order in which a backward reaches it."""
        owner = {id(p): stage for stage, module in self._modules.items() for p in module.parameters()}
        return {
            stage: [
                parameter
                for parameter in reversed(list(module.parameters()))
                if parameter.requires_grad and owner[id(parameter)] == stage and not isinstance(parameter, DTensor)
            ]
            for stage, module in self._modules.items()
        }
