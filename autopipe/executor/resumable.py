"""A pipeline's training state is saved and restored: of the model, the optimizer, the data and the random numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful

from autopipe.documents.arguments import typed
from autopipe.documents.graph import Graph
from autopipe.executor.checkpoint import Checkpointer, Optimizers, Progress, Restored, Trained, several
from autopipe.executor.held import HeldModel
from autopipe.executor.layout import Layout
from autopipe.executor.ranks import Ranks
from autopipe.executor.saving import Saving


class Resumable(HeldModel):
    """A model in training that can be saved, and can go on from what was saved.

    Attributes
    ----------
    seed, steps : int
        What random operations draw from; restored with the rest.
    """

    def __init__(self, graph: Graph, layout: Layout, ranks: Ranks, *, seed: int) -> None:
        super().__init__(graph, layout, ranks)
        self.seed = seed
        self.steps = 0
        self._checkpointer = Checkpointer(graph, layout, ranks.endpoint)

    @typed
    def save(
        self,
        folder: str | Path,
        *,
        optimizer: Optimizers = None,
        scheduler: Stateful | Sequence[Stateful] | None = None,
        scaler: Stateful | None = None,
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
        with self._ranks.together("saving a checkpoint"):
            return self._checkpointer.save(
                folder,
                self.state_dict(),
                dict(self.named_parameters()),
                Trained(optimizers=several(optimizer), schedulers=several(scheduler), scaler=scaler, data=data),
                Progress(step=self.steps if step is None else step, steps=self.steps, seed=self.seed),
                keep=keep,
                in_background=in_background,
            )

    @typed
    def load(
        self,
        folder: str | Path,
        *,
        optimizer: Optimizers = None,
        scheduler: Stateful | Sequence[Stateful] | None = None,
        scaler: Stateful | None = None,
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
        with self._ranks.together("loading a checkpoint"):
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
