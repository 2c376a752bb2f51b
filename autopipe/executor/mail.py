"""Mail: posts, sends and awaits a rank's messages, and frees what has left."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autopipe.errors import InputError
from autopipe.executor.squeeze import squeezed, squeezed_specs, unsqueezed
from autopipe.executor.wire import POISON, Spec, TensorSpec, allocate, decode_specs, describe, encode_specs, flat
from autopipe.schedules.comms import Message
from autopipe.stages.boundary import Route
from autopipe.transport.endpoint import Endpoint, Handle

HEADER_TAG = 0
Key = tuple[int, int, bool, int]


class Mail:
    """One rank's messages.

    The first message of an edge under a new signature is preceded by its specification (shapes, dtypes,
    plain values), which both sides keep: from then on only tensors travel, into buffers posted early. With a
    ``boundary_dtype`` larger floating-point tensors travel in it.

    Attributes
    ----------
    peak_outputs : int
        The most outputs of stages held at once because they had not left.
    peak_receive_buffers : int
        The most messages for which a buffer was held at once: posted, arrived, or in use by a stage.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        stage_ranks: Sequence[int],
        routes: Sequence[Route],
        boundary_dtype: torch.dtype | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._boundary_dtype = boundary_dtype
        self._stage_ranks = tuple(stage_ranks)
        self._edges = {(route.source, route.target): index for index, route in enumerate(routes)}
        self._names = {(route.source, route.target): route.names for route in routes}
        self._width = max((len(route.names) for route in routes), default=1)
        self._specs: dict[Key, tuple[Spec, ...]] = {}
        self._gradient_names: dict[Key, tuple[str, ...]] = {}
        self.begin(())

    def begin(self, signatures: Sequence[int]) -> None:
        """Start a step whose micro-batches have these signature numbers."""
        self._signatures = tuple(signatures)
        self._posted: dict[Message, tuple[list[Any], list[Handle]]] = {}
        self._unposted: dict[int, deque[Message]] = {}
        self._inbox: dict[Message, list[Any] | None] = {}
        self._outbox: dict[Message, list[Any] | None] = {}
        self._leaving: dict[Message, list[Handle]] = {}
        self._buffers: set[Message] = set()
        self.peak_outputs = 0
        self.peak_receive_buffers = 0

    def forget(self) -> None:
        """Drop all specifications: the next step exchanges them anew on every edge."""
        self._specs.clear()
        self._gradient_names.clear()

    def gradient_names(self, source: int, target: int, micro_batch: int) -> tuple[str, ...]:
        """Return the names on edge ``source`` to ``target`` whose gradients come back."""
        return self._gradient_names.get((source, target, False, self._signatures[micro_batch]), ())

    def zeros(self, message: Message) -> list[Any]:
        """Return what a gradient message holds where the micro-batch counts for nothing."""
        known = self._specs.get(self._key(message))
        if known is None:
            forward = self._specs[message.target, message.source, False, self._signatures[message.micro_batch]]
            known = tuple(spec for spec in forward if isinstance(spec, TensorSpec) and spec.gradient)
        return [_zero(value) for value in allocate(known, self._endpoint.device)]

    def put(self, message: Message, values: list[Any] | None) -> None:
        """Hand over the values of a message; None if they could not be made.

        A message between stages of this rank is delivered at once, another at its `send`.
        """
        if values is not None:
            self._check(message, values)
        if self._peer(message) == self._endpoint.rank:
            if values is not None and self._key(message) not in self._specs:
                self._keep_specs(self._key(message), describe(values, origin=f"message {message}"))
            if values is not None:
                # The reader may change its input in place, and the writer's backward may need it unchanged.
                values = [value.detach().clone() if isinstance(value, Tensor) else value for value in values]
            self._inbox[message] = values
        else:
            self._outbox[message] = values
            held = sum(not other.backward for other in self._outbox)
            self.peak_outputs = max(self.peak_outputs, held)

    def take(self, message: Message) -> list[Any] | None:
        """Return the values of a message that has arrived; None if its sender could not make them."""
        return self._inbox.pop(message)

    def free(self, message: Message) -> None:
        """Say that the stage is done with what it took."""
        self._buffers.discard(message)

    def post(self, message: Message) -> None:
        """Offer buffers for a message, or as soon as it is awaited if its specification is not known yet.

        Messages from one rank are offered in the order of their posts: without tags, they arrive in that order.
        """
        line = self._unposted.setdefault(self._origin(message), deque())
        line.append(message)
        while line and (self._is_empty(line[0]) or self._key(line[0]) in self._specs):
            self._offer(line.popleft())

    def await_arrival(self, message: Message) -> None:
        """Return when a message has arrived."""
        line = self._unposted[self._origin(message)]
        while message not in self._posted and message not in self._inbox:
            self._learn(line[0])
            self._offer(line.popleft())
        if message in self._posted:
            values, handles = self._posted.pop(message)
            for handle in handles:
                handle.wait()
            self._inbox[message] = unsqueezed(values, self._specs[self._key(message)], self._boundary_dtype)

    def send(self, message: Message) -> None:
        """Start sending what was put under ``message``."""
        values = self._outbox[message]
        handles: list[Handle] = []
        self._leaving[message] = handles
        if self._is_empty(message):
            return
        peer, key = self._peer(message), self._key(message)
        if key not in self._specs:
            note = POISON
            if values is not None:
                self._keep_specs(key, describe(values, origin=f"message {message}"))
                note = encode_specs(self._specs[key])
            handles.append(self._endpoint.send_note(note, peer=peer, tag=self._note_tag(message)))
        if key not in self._specs:
            return
        if values is None:
            values = [_zero(value) for value in allocate(self._specs[key], self._endpoint.device)]
        for index, value in enumerate(values):
            if isinstance(value, Tensor):
                spec = self._specs[key][index]
                assert isinstance(spec, TensorSpec)
                tensor = squeezed(flat(value, spec.order), self._boundary_dtype)
                handles.append(self._endpoint.send(tensor, peer=peer, tag=self._tag(message, index)))

    def await_sent(self, message: Message) -> None:
        """Return when a message has left, and free its values."""
        for handle in self._leaving.pop(message):
            handle.wait()
        del self._outbox[message]

    def _learn(self, message: Message) -> None:
        """Receive a message's specification where it comes before the message."""
        if not self._is_empty(message) and self._key(message) not in self._specs:
            note = self._endpoint.receive_note(peer=self._origin(message), tag=self._note_tag(message))
            specs = decode_specs(note)
            if specs is not None:
                self._keep_specs(self._key(message), specs)

    def _keep_specs(self, key: Key, specs: tuple[Spec, ...]) -> None:
        """Keep what messages look like and, of a forward one, the names whose gradients come back."""
        self._specs[key] = specs
        source, target, backward, _ = key
        if not backward:
            named = zip(self._names[source, target], specs, strict=True)
            self._gradient_names[key] = tuple(n for n, s in named if isinstance(s, TensorSpec) and s.gradient)

    def _offer(self, message: Message) -> None:
        """Post the receives of a message; one that holds nothing, or could not be made, has arrived already."""
        if self._is_empty(message):
            self._inbox[message] = []
            return
        specs = self._specs.get(self._key(message))
        if specs is None:
            self._inbox[message] = None
            return
        peer = self._origin(message)
        values = allocate(squeezed_specs(specs, self._boundary_dtype), self._endpoint.device)
        handles = [
            self._endpoint.receive(flat(value, spec.order), peer=peer, tag=self._tag(message, index))
            for index, (value, spec) in enumerate(zip(values, specs, strict=True))
            if isinstance(spec, TensorSpec)
        ]
        self._posted[message] = (values, handles)
        self._buffers.add(message)
        self.peak_receive_buffers = max(self.peak_receive_buffers, len(self._buffers))

    def _check(self, message: Message, values: list[Any]) -> None:
        known = self._specs.get(self._key(message))
        if known is None:
            return
        if all(isinstance(spec, TensorSpec) and spec.takes(value) for spec, value in zip(known, values, strict=True)):
            return
        found = describe(values, origin=f"message {message}")
        for index, (old, new) in enumerate(zip(known, found, strict=True)):
            if old == new or (isinstance(old, TensorSpec) and old.accepts(new)):
                continue
            if message.backward and isinstance(old, TensorSpec) and values[index] is None:
                values[index] = _zero(allocate((old,), self._endpoint.device)[0])
                continue
            raise InputError(
                f"value {index} of message {message} is {new}, and the receiver expects {old} for inputs of this "
                "shape: a boundary must not depend on the values of tensors, nor on parameters frozen or unfrozen "
                "since. Call pipe.reset() after freezing; otherwise make the module that produces it a leaf."
            )

    def _is_empty(self, message: Message) -> bool:
        """Tell whether a gradient message holds nothing, which both sides know once the forward has passed."""
        if not message.backward:
            return False
        key = (message.target, message.source, False, self._signatures[message.micro_batch])
        return self._gradient_names.get(key) == ()

    def _key(self, message: Message) -> Key:
        return (message.source, message.target, message.backward, self._signatures[message.micro_batch])

    def _peer(self, message: Message) -> int:
        return self._stage_ranks[message.target]

    def _origin(self, message: Message) -> int:
        return self._stage_ranks[message.source]

    def _note_tag(self, message: Message) -> int:
        forward = (message.target, message.source) if message.backward else (message.source, message.target)
        direction = 2 * self._edges[forward] + message.backward
        return HEADER_TAG + 1 + direction * len(self._signatures) + message.micro_batch

    def _tag(self, message: Message, index: int) -> int:
        return self._note_tag(message) * self._width + index


def _zero(value: Any) -> Any:
    return value.zero_() if isinstance(value, Tensor) else value
