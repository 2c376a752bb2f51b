"""Stages that `torch.distributed.fsdp.fully_shard` has sharded over their replicas: gradients reduced once a step."""

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


def hold_gradients(module: nn.Module) -> None:
    """Let backwards add up whole gradients, without a message and with the parameters kept whole."""
    if isinstance(module, FSDPModule):
        module.set_is_last_backward(False)
        module.set_reshard_after_backward(False)
        module.set_requires_gradient_sync(False)


def reduce_gradients(module: nn.Module) -> None:
    """Average a stage's gradients over its replicas and keep this one's shard, after the last backward of a step.

    Notes
    -----
    torch 2.13 has no public call for it: its own pipelining ends a stage's backwards the same way.
    """
    if not isinstance(module, FSDPModule):
        return
    module.set_is_last_backward(True)
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)
    state = fully_shard.state(module)  # type: ignore[attr-defined]
    for part in state._state_ctx.all_states:
        groups = getattr(part, "_fsdp_param_groups", None) or [part._fsdp_param_group]
        for group in groups:
            if group is not None:
                group.post_backward()
    state._root_post_backward_final_callback()


def whole(tensor: Tensor) -> Tensor:
    """Return a sharded tensor's whole, for which all replicas call it; another one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return ``value`` sharded as ``tensor`` is."""
    if not isinstance(tensor, DTensor):
        return value
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
