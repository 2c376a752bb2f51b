"""Tensors go to and come from disk by torch.distributed.checkpoint, whose pickled index is read without trust."""

import enum
import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from autopipe.errors import DocumentError

INDEX = ".metadata"
_CLASSES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


def write(tensors: Mapping[str, Tensor], folder: Path, group: dist.ProcessGroup | None) -> None:
    """Write ``tensors`` into ``folder``: with a group, every process its own; what several hold is written once.

    Raises
    ------
    Exception
        What torch.distributed.checkpoint raised, on all processes, if one could not write.
    """
    writer = _Writer(folder)
    if group is not None:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group)
        return
    # dcp.save would warn that there is no process group.
    planner = dcp.DefaultSavePlanner()
    planner.set_up_planner(dict(tensors), storage_meta=writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, index = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.finish(index, [writer.write_data(plan, planner).wait()])


def read_index(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Return shape and dtype of every tensor in a checkpoint, by name.

    Raises
    ------
    DocumentError
        If the index cannot be read, is not one, or tells of more than the files hold.
    """
    entries = _Reader(folder).read_metadata().state_dict_metadata
    try:
        found = {str(name): entry for name, entry in entries.items() if isinstance(entry, TensorStorageMetadata)}
        told = sum(math.prod(map(_natural, entry.size)) * entry.properties.dtype.itemsize for entry in found.values())
    except (AttributeError, TypeError, ValueError) as error:
        raise DocumentError(f"{folder / INDEX} is not the index of a checkpoint ({error}): check the path.") from error
    held = sum(path.stat().st_size for path in folder.glob("*.distcp"))
    if told > held:
        raise DocumentError(
            f"{folder / INDEX} tells of {told} bytes and the files beside it hold {held}: some are missing or cut "
            "short. Load an older checkpoint."
        )
    return found


def read(targets: Mapping[str, Tensor], folder: Path) -> None:
    """Fill ``targets``, whose names and shapes are those of the index, from a checkpoint.

    Raises
    ------
    DocumentError
        If the files do not hold what the index says.
    """
    reader = _Reader(folder)
    index = reader.read_metadata()
    planner = dcp.DefaultLoadPlanner()
    try:
        planner.set_up_planner(dict(targets), index, True)
        reader.set_up_storage_reader(index, True)
        plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
        reader.read_data(plan, planner).wait()
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DocumentError(
            f"{folder} cannot be read ({reason}): its files are not those that were written. Load an older checkpoint."
        ) from error


def _natural(number: int) -> int:
    if number < 0:
        raise ValueError(f"a size of {number}")
    return number


class _Writer(dcp.FileSystemWriter):
    def storage_meta(self) -> StorageMeta:
        # torch's own has the path of the folder, which is not the final one.
        return StorageMeta()


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / INDEX
        try:
            index = _Unpickler(io.BytesIO(path.read_bytes())).load()
            names = {info.relative_path for info in index.storage_data.values()}
        except Exception as error:  # a damaged pickle can raise anything
            raise DocumentError(f"{path} is not the index of a checkpoint ({error}): check the path.") from error
        odd = [name for name in names if Path(name).name != name]
        if odd or not isinstance(index, Metadata):
            raise DocumentError(f"{path} names files elsewhere ({odd[:1]}): it was not written by a save.")
        index.storage_meta = StorageMeta(load_id=self.load_id)
        return index


class _Unpickler(pickle.Unpickler):
    """Makes the classes of an index, and no others: a pickle from elsewhere could otherwise run code."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("builtins", "getattr"):
            return _member  # how Python before 3.11.4 writes a member of an enumeration
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no checkpoint does")


def _member(owner: Any, name: str) -> Any:
    if not isinstance(owner, type) or not issubclass(owner, enum.Enum):
        raise pickle.UnpicklingError(f"it reads {name} of {owner}, which no checkpoint does")
    return owner[name]
