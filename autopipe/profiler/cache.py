"""Profiles are kept by the question that they answer, and what was measured before an interrupt is gone on with."""

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec

from autopipe.documents.files import load, save
from autopipe.documents.profile import Profile
from autopipe.errors import DocumentError
from autopipe.profiler.footprint import Footprint


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """What has been measured so far: footprints by micro-batch size, and durations by pool."""

    footprints: dict[int, Footprint] = {}
    pools: dict[str, list[int]] = {}
    rounds: int = 0


class ProfileCache:
    """A folder with a profile for each question, and the notes of those that were not finished.

    Attributes
    ----------
    answered : bool
        Whether the last question was answered from here.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self.answered = False

    def answer(self, question: str) -> Profile | None:
        """Return the profile that answers ``question``, None if there is none; one that cannot be read is forgotten."""
        path = self._path(question, "profile")
        try:
            profile = load(path, Profile) if path.exists() else None
        except DocumentError:
            path.unlink(missing_ok=True)
            profile = None
        self.answered = profile is not None
        return profile

    def keep(self, question: str, profile: Profile) -> None:
        """Keep the profile that answers ``question``; its notes are not needed any more."""
        self._folder.mkdir(parents=True, exist_ok=True)
        save(profile, self._path(question, "profile"))
        self._path(question, "notes").unlink(missing_ok=True)

    def notes(self, question: str) -> Notes:
        """Return what was noted for ``question`` before, empty notes where there is nothing."""
        try:
            return msgspec.json.decode(self._path(question, "notes").read_bytes(), type=Notes)
        except (OSError, msgspec.DecodeError):
            return Notes()

    def note(self, question: str, notes: Notes) -> None:
        """Write the notes for ``question``, all or nothing."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(question, "notes")
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_bytes(msgspec.json.encode(notes))
        scratch.replace(path)

    def _path(self, question: str, what: str) -> Path:
        return self._folder / f"{question}.{what}.json"


def question_of(*parts: Any) -> str:
    """Return a short name of a question: equal for equal parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def default_folder() -> Path:
    """Return the folder for profiles of this user."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "autopipe" / "profiles"
