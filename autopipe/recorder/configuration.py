"""How modules are configured: numbers and names that a recording reads of them and keeps as constants."""

import hashlib
from collections.abc import Collection, Iterator

from torch import nn


def configuration(model: nn.Module, called: Collection[str]) -> dict[str, str]:
    """Return a digest of the configuration of each module whose own code a recording does not run, by path.

    Parameters
    ----------
    called : collection of str
        The paths of modules that the graph calls: they run their own code, with the attributes of the day. Only torch's
        own are looked at among them, for the modules around them may read what they hold (the rate of a dropout).
    """
    found = {}
    inside = tuple(f"{path}." for path in called)
    for path, module in model.named_modules():
        is_torch_own = type(module).__module__.startswith("torch.nn.modules.")
        if path.startswith(inside) or (path in called and not is_torch_own):
            continue
        text = module.extra_repr() if is_torch_own else " ".join(_settings(module))
        if text:
            found[path] = hashlib.blake2s(f"{type(module).__qualname__} {text}".encode(), digest_size=6).hexdigest()
    return found


def _settings(module: nn.Module) -> Iterator[str]:
    """Yield the numbers and strings that a module holds, and the fractions of its ``config``, where it has one."""
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, (bool, int, float, str)):
            yield f"{name}={value!r}"
    # Flags and counts of a library's configuration are of many things beside the forward.
    config = getattr(vars(module).get("config"), "__dict__", {})
    yield from (f"config.{name}={value!r}" for name, value in sorted(config.items()) if isinstance(value, float))
