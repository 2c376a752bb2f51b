"""A profile is checked before anything is computed from it."""

from autopipe.documents.profile import Profile
from autopipe.errors import DocumentError


def check_profile(profile: Profile) -> None:
    """Return if the figures of ``profile`` can be computed with.

    Raises
    ------
    DocumentError
        With the path of the first fault: sizes that do not ascend, a tuple of another length, a figure
        below 0 or above 2**50, a value that is read before it is made, or no layers at all.
    """
    fault = next(profile.faults(), None)
    if fault is not None:
        raise DocumentError(f"the profile of {profile.model!r} cannot be used: {fault}. Profile the model again.")
