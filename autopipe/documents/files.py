"""Documents are read from and written to strict, versioned JSON files."""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from autopipe.errors import DocumentError

MAXIMUM_FILE_BYTES = 512 * 1024**2
_LONG = re.compile(rb"[:\[,\s]-?\d{19}")


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format"):
    """A frozen value with a JSON form; subclasses carry ``tag="autopipe.<kind>"``."""

    version: int = 1

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the document as a whole, each with the path of the field: nothing by default."""
        return iter(())

    def save(self, path: str | Path) -> None:
        """Write the document to ``path`` as `save` does: a reader sees the old file or the new one, never a part.

        Raises
        ------
        DocumentError
            If the file cannot be written.
        """
        save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the document of this type in the file at ``path``.

        Raises
        ------
        DocumentError
            If the file cannot be read, or does not hold such a document.
        """
        return load(path, cls)


DocumentType = TypeVar("DocumentType", bound=Document)


def encode(document: Document) -> bytes:
    """Return the JSON form of ``document``: UTF-8, indented, keys in the order of its fields."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def decode(text: bytes | str, kind: type[DocumentType], *, origin: str = "document") -> DocumentType:
    """Return the document of type ``kind`` that ``text`` holds.

    Raises
    ------
    DocumentError
        If the text is not JSON, not this kind, of another version, a field is missing, unknown or
        wrong, or the fields contradict each other; the message names ``origin`` and the path of the field.
    """
    name = kind.__struct_config__.tag
    try:
        document = msgspec.json.decode(text, type=kind)
    except RecursionError:
        raise DocumentError(f"{origin}: nested too deeply to be an {name} document. Write it anew.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = _no_number(text)
        reason = error if where is None else f"JSON has no number for {where}"
        raise DocumentError(
            f"{origin} is not a valid {name} document: {reason}. Write it anew with the command that makes it."
        ) from None
    if document.version != 1:
        raise DocumentError(
            f"{origin} is {name} version {document.version}, and this autopipe reads version 1. "
            "Update autopipe, or write the file anew."
        )
    where = _too_large(text)
    if where is not None:
        raise DocumentError(f"{origin} is not a valid {name} document: {where} is beyond 64 bits. Write it anew.")
    fault = next(document.faults(), None)
    if fault is not None:
        raise DocumentError(f"{origin} does not hold together as an {name} document: {fault}. Write it anew.")
    return document


def _no_number(text: bytes | str) -> str | None:
    """Return the first NaN or Infinity of a text that is JSON but for these, with its path; None if it has none."""
    return _first(text, parse_constant=lambda name: name)


def _too_large(text: bytes | str) -> str | None:
    """Return the first whole number of a JSON text that 64 bits do not hold, with its path; None if it has none."""
    if _LONG.search(text.encode(errors="replace") if isinstance(text, str) else text) is None:
        return None
    return _first(text, parse_int=lambda digits: digits if len(digits) > 20 or abs(int(digits)) >> 64 else None)


def _first(text: bytes | str, **parse: Callable[[str], str | None]) -> str | None:
    """Return the first constant or number of a JSON text for which its parser returns a word, with its path."""

    class Constant(str):
        """What the parser returned."""

    def walk(value: object, path: str) -> Iterator[str]:
        if isinstance(value, Constant):
            yield f"{value} - at `{path}`"
        elif isinstance(value, dict):
            for key, inner in value.items():
                yield from walk(inner, f"{path}.{key}")
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from walk(inner, f"{path}[{index}]")

    try:
        found: dict[str, Any] = {
            name: lambda word, told=told: Constant(told(word)[:40]) if told(word) is not None else 0
            for name, told in parse.items()
        }
        return next(walk(json.loads(text, **found), "$"), None)
    except (ValueError, RecursionError):
        return None


def load(path: str | Path, kind: type[DocumentType]) -> DocumentType:
    """Return the document of type ``kind`` in the file at ``path``.

    Raises
    ------
    DocumentError
        If the file cannot be read, is larger than 512 MiB, or does not hold such a document.
    """
    try:
        size = os.path.getsize(path)
        if size > MAXIMUM_FILE_BYTES:
            raise DocumentError(f"{path} holds {size} bytes; documents hold at most {MAXIMUM_FILE_BYTES}.")
        text = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DocumentError(f"cannot read {path}: {reason}. Check the path.") from None
    return decode(text, kind, origin=str(path))


def save(document: Document, path: str | Path) -> None:
    """Write ``document`` to ``path``: to a temporary name beside it first, then renamed.

    Raises
    ------
    DocumentError
        If the file cannot be written; what stood at ``path`` before is then untouched.
    """
    write_whole(encode(document), path)


def write_whole(content: bytes | memoryview, path: str | Path) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old file or the new one, never a part.

    Raises
    ------
    DocumentError
        If the file cannot be written.
    """
    target = Path(path)
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:64]}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DocumentError(f"cannot write {path}: {reason}. Check the folder and its permissions.") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def fingerprint(value: Any) -> str:
    """Return a short digest of any value that msgspec can encode: equal values, equal digests."""
    canonical = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(canonical).hexdigest()[:16]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
