"""Recorder: a module becomes a torch.fx graph of its own submodules, grouped into layers."""

from autopipe.recorder.rebuilding import assemble, rebuild
from autopipe.recorder.recording import Recording, record

__all__ = ["Recording", "assemble", "rebuild", "record"]
