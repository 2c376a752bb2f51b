"""A pipeline's training state is written by all of its processes together, and read by those of any other pipeline."""

import contextlib
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.tensor import DTensor

from autopipe import errors
from autopipe.checkpoints import folder as folders
from autopipe.checkpoints.optimizers import NamedState, load_named_state, merged_groups, named_state
from autopipe.checkpoints.packing import pack, unpack
from autopipe.checkpoints.saved import MODEL, OPTIMIZER, TRAINING, Saved
from autopipe.checkpoints.tensors import write
from autopipe.documents.checkpoint import Checkpoint
from autopipe.documents.files import save as save_document
from autopipe.documents.files import write_whole
from autopipe.documents.graph import Graph
from autopipe.errors import AutopipeError, DocumentError, InputError
from autopipe.executor.layout import Layout
from autopipe.executor.saving import Saving
from autopipe.transport.endpoint import Endpoint, TransportError

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a process trains with: each field is what the user's loop has, None where it has none."""

    optimizers: tuple[torch.optim.Optimizer, ...]
    schedulers: tuple[Any, ...]
    scaler: Any
    data: Any


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a pipeline is: the user's step, its own count of steps, its seed."""

    step: int
    steps: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What `Pipeline.load` found: the step after which it was saved, the data position, and where."""

    step: int
    data: Any
    folder: Path


class Checkpointer:
    """Saves and loads the training state of one process's part of a pipeline.

    Parameters
    ----------
    endpoint : Endpoint, optional
        That of the process; None where this process holds all ranks.
    """

    def __init__(self, graph: Graph, layout: Layout, endpoint: Endpoint | None) -> None:
        self._graph, self._layout, self._endpoint = graph, layout, endpoint
        self._leads = endpoint is None or dist.get_rank() == 0
        self._group: dist.ProcessGroup | None = None
        self._last: Saving | None = None
        self._staged: dict[str, Tensor] = {}
        self._aliases = {alias: p.name for p in graph.parameters for alias in p.aliases}

    def save(
        self,
        folder: str | Path,
        state: Mapping[str, Tensor],
        parameters: Mapping[str, nn.Parameter],
        trained: Trained,
        progress: Progress,
        *,
        keep: int | None,
        in_background: bool,
    ) -> Saving:
        """Write ``folder/step-...``; see `Pipeline.save`."""
        if self._endpoint is not None and self._group is None:
            self._group = dist.new_group(backend="gloo")
        self.finish()
        tensors: dict[str, Tensor] = {}

        def collect() -> bytes:
            if keep is not None and keep < 1:
                raise InputError(f"keep={keep} would leave no checkpoint: pass 1 or more.")
            if not 0 <= progress.step < 1 << 63:
                raise InputError(f"step={progress.step} is no number of steps: pass 0 or more.")
            known = named_state(trained.optimizers, {parameter: name for name, parameter in parameters.items()})
            tensors.update(self._named(state, known.tensors))
            return self._note(tuple(tensors), known, trained, progress)

        notes = [unpack(note, "the note of a rank") for note in self._agree(collect)]
        if len({note["step"] for note in notes}) > 1:
            steps = [note["step"] for note in notes]
            raise InputError(f"ranks save different steps ({steps}): call save after the same step on every rank.")
        training = {**self._merged(notes), "groups": merged_groups([note["groups"] for note in notes])}
        document = self._document(progress, training, notes)
        content = pack(training)
        leader = notes[self._place_of_leader()]
        draft = Path(folder) / leader["draft"]
        own = self._copied(tensors) if in_background else {n: t.detach() for n, t in tensors.items()}
        self._last = Saving(lambda: self._write(draft, own, content, document, keep))
        self._last.start(in_background=in_background)
        if not in_background:
            self._last.wait()
        return self._last

    def finish(self) -> None:
        """Wait for the save before, and raise what kept it from being written."""
        last, self._last = self._last, None
        if last is not None:
            last.settle()

    def load(
        self,
        folder: str | Path,
        state: Mapping[str, Tensor],
        parameters: Mapping[str, nn.Parameter],
        trained: Trained,
        *,
        give: Callable[[dict[str, Tensor]], None],
        random_state: bool,
        required: bool,
    ) -> tuple[Restored, Progress] | None:
        """Load ``folder``, or the newest checkpoint in it; ``give`` takes the model's tensors. See `Pipeline.load`."""
        self.finish()
        found = self._agree(lambda: os.fsencode(_chosen(folder, required) or "") if self._leads else b"")
        path = os.fsdecode(found[self._place_of_leader()])
        if not path:
            return None
        read: list[Any] = []

        def prepare() -> bytes:
            saved = Saved(path)
            saved.check_names(name for p in self._graph.parameters for name in (p.name, *p.aliases))
            _check_has(saved, trained)
            wanted = parameters if trained.optimizers else ()
            read.extend((saved, saved.read(state, optimizer_of=wanted), self._own(saved.training["data"], "data")))
            return b""

        self._agree(prepare)
        saved, contents, data = read
        names = {parameter: name for name, parameter in parameters.items()}

        def apply() -> bytes:
            load_named_state(trained.optimizers, names, contents.optimizer)
            return b""

        self._agree(apply)
        give(contents.model)
        if trained.schedulers:
            for scheduler, known in zip(trained.schedulers, saved.training["scheduler"], strict=True):
                scheduler.load_state_dict(known)
        if trained.scaler is not None:
            trained.scaler.load_state_dict(saved.training["scaler"])
        if hasattr(trained.data, "load_state_dict") and data is not None:
            trained.data.load_state_dict(data)
        if random_state:
            state_of_generator = self._own(saved.training["random"], "random state")
            if state_of_generator is not None:
                torch.set_rng_state(state_of_generator)
        document = saved.document
        progress = Progress(step=document.step, steps=document.steps, seed=document.seed)
        return Restored(step=document.step, data=data, folder=Path(path)), progress

    def _named(self, state: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this process's tensors under their names on disk, tied ones once."""
        odd = next((name for name, value in state.items() if not isinstance(value, Tensor)), None)
        if odd is not None:
            raise InputError(f"{odd} in the model's state is no tensor, and a checkpoint holds tensors only.")
        named = {MODEL + self._aliases.get(name, name): tensor for name, tensor in state.items()}
        return named | {OPTIMIZER + name: tensor for name, tensor in moments.items()}

    def _note(self, names: Sequence[str], known: NamedState, trained: Trained, progress: Progress) -> bytes:
        """Return what this process tells the others before all of them write."""
        return pack(
            {
                "draft": folders.draft_name(progress.step),
                "step": progress.step,
                "names": [name.removeprefix(MODEL) for name in names if name.startswith(MODEL)],
                "groups": known.groups,
                "rest": known.rest,
                "scheduler": [scheduler.state_dict() for scheduler in trained.schedulers] or None,
                "scaler": None if trained.scaler is None else trained.scaler.state_dict(),
                "data": _data_state(trained.data),
                "random": torch.get_rng_state(),
            }
        )

    def _agree(self, make: Callable[[], bytes]) -> tuple[bytes, ...]:
        """Return what every process makes, by rank and replica; all raise what one of them met."""
        try:
            mine = b"\0" + make()
        except AutopipeError as error:
            mine = b"\1" + f"{type(error).__name__}:{error}".encode(errors="backslashreplace")
        notes = (mine,) if self._endpoint is None else self._endpoint.gather_notes(mine)
        for place, note in enumerate(notes):
            if note[:1] == b"\1":
                kind, _, message = note[1:].decode().partition(":")
                where = f" (on rank {place // self._layout.replicas})" if self._endpoint is not None else ""
                raise getattr(errors, kind)(f"{message}{where}")
        return tuple(note[1:] for note in notes)

    def _place_of_leader(self) -> int:
        """Return the place, by rank and replica, of process 0, which makes the folder and the documents."""
        order = self._layout.device_order
        return order.index(0) if self._endpoint is not None and order else 0

    def _merged(self, notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return what all processes know together, beside tensors and groups."""
        replicas = self._layout.replicas if self._endpoint is not None else 1

        def first(key: str, rows: Sequence[dict[str, Any]] = notes) -> Any:
            return next((note[key] for note in rows if note[key] is not None), None)

        return {
            "rest": {name: entries for note in notes for name, entries in note["rest"].items()},
            "scheduler": first("scheduler"),
            "scaler": first("scaler"),
            "data": [first("data", notes[replica::replicas]) for replica in range(replicas)],
            "random": [notes[replica]["random"] for replica in range(replicas)],
        }

    def _document(self, progress: Progress, training: dict[str, Any], notes: Sequence[dict[str, Any]]) -> Checkpoint:
        saved = {name for note in notes for name in note["names"]}
        layout, graph = self._layout, self._graph
        return Checkpoint(
            step=progress.step,
            steps=progress.steps,
            seed=progress.seed,
            model=graph.model,
            graph_fingerprint=graph.fingerprint,
            bounds=layout.bounds,
            stage_ranks=layout.stage_ranks,
            schedule=layout.schedule,
            micro_batches=layout.micro_batches,
            replicas=layout.replicas,
            aliases=self._aliases,
            unread=tuple(p.name for p in graph.parameters if p.name not in saved),
            optimizers=tuple(dict.fromkeys(group["optimizer"] for group in training["groups"])),
            torch_version=str(torch.__version__),
        )

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies on the CPU, whose memory the next save uses again."""
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            tensor = tensor.detach()
            if isinstance(tensor, DTensor):
                copies[name] = tensor.clone()
                continue
            copy = self._staged.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
            copies[name] = copy.copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values()}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        self._staged = {name: copy for name, copy in copies.items() if not isinstance(copy, DTensor)}
        return copies

    def _write(
        self, draft: Path, tensors: Mapping[str, Tensor], training: bytes, document: Checkpoint, keep: int | None
    ) -> Path:
        """Write a draft together, and let process 0 make it whole; its answer goes to all."""
        answer = [""]
        try:
            if self._leads:
                folders.remove_left_overs(draft.parent, but=draft.name)
                draft.mkdir(parents=True, exist_ok=True)
            write(tensors, draft, self._group)
            if self._leads:
                write_whole(training, draft / TRAINING)
                save_document(document, draft / folders.DOCUMENT)
                answer = [str(folders.publish(draft, document.step, keep=keep))]
        except CheckpointException as error:  # all processes raise it
            if self._leads:
                shutil.rmtree(draft, ignore_errors=True)
            raise _unwritten(draft, error) from error
        except RuntimeError as error:
            raise _unwritten(draft, error) from TransportError(str(error))
        except (OSError, ValueError, DocumentError) as error:
            with contextlib.suppress(ValueError):  # a name that no file can have
                shutil.rmtree(draft, ignore_errors=True)
            if self._group is None:
                raise _unwritten(draft, error) from error
            answer = [f"\1{_unwritten(draft, error)}"]
        try:
            if self._group is not None:
                dist.broadcast_object_list(answer, src=0, group=self._group)
        except RuntimeError as error:
            raise _unwritten(draft, error) from TransportError(str(error))
        if answer[0].startswith("\1"):
            raise DocumentError(answer[0][1:])
        return Path(answer[0])

    def _own(self, by_replica: Sequence[Any], what: str) -> Any:
        """Return this replica's entry of what was saved by replica; None, with a warning, if there is no such one."""
        replicas = self._layout.replicas if self._endpoint is not None else 1
        if len(by_replica) == replicas:
            return by_replica[self._endpoint.replica if self._endpoint is not None else 0]
        packed = {pack({"": value}) for value in by_replica}
        if len(packed) == 1:
            return by_replica[0]
        warnings.warn(
            f"the {what} of the checkpoint is that of {len(by_replica)} replicas, which differ, and there are "
            f"{replicas} now: it is left as it is.",
            stacklevel=4,
        )
        return None


def _unwritten(draft: Path, error: BaseException) -> DocumentError:
    failures = error.failures if isinstance(error, CheckpointException) else {0: (error, None)}
    rank, (cause, _) = next(iter(failures.items()))
    return DocumentError(
        f"rank {rank} could not write the checkpoint in {draft.parent} ({cause}): those before it are as they were. "
        "Check space and permissions, and save again."
    )


def _check_has(saved: Saved, trained: Trained) -> None:
    """Return if ``saved`` has a state for all of ``trained``; raise DocumentError if not."""
    if trained.optimizers and not saved.training["groups"]:
        raise DocumentError(f"{saved.folder} was saved without an optimizer: load it without optimizer=.")
    if trained.scaler is not None and saved.training["scaler"] is None:
        raise DocumentError(f"{saved.folder} was saved without a scaler: load it without scaler=.")
    own, known = len(trained.schedulers), len(saved.training["scheduler"] or ())
    if own not in (0, known):
        raise DocumentError(f"{saved.folder} was saved with {known} schedulers, and {own} are to be loaded.")


def _chosen(folder: str | Path, required: bool) -> Path | None:
    return folders.find(folder) if required else folders.newest(folder)


def _data_state(data: Any) -> Any:
    return data.state_dict() if hasattr(data, "state_dict") else data


def several(value: Any) -> tuple[Any, ...]:
    """Return one, several or no optimizers or schedulers as a tuple."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, Sequence) else (value,)
