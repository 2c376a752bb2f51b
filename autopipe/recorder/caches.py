"""A language model's key-value cache, which only generation reads, is left out while it is recorded."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def no_generation_cache(model: nn.Module) -> Iterator[None]:
    """Turn ``config.use_cache`` off, as a training script would, and put it back at the end.

    Notes
    -----
    Models of the transformers library return the keys and values of every layer unless told otherwise. In a
    pipeline all of them would travel to the last stage, for nothing: no loss depends on them.
    """
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    changed = [config for config in configs.values() if getattr(config, "use_cache", None) is True]
    try:
        for config in changed:
            config.use_cache = False
        yield
    finally:
        for config in changed:
            config.use_cache = True
