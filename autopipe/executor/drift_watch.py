"""A drift watch looks at every so many steps of a pipeline while it trains and compares them with its plan."""

import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path

from autopipe.documents.arguments import typed
from autopipe.documents.files import load
from autopipe.documents.plan import Plan
from autopipe.documents.profile import Profile
from autopipe.documents.timeline import Timeline
from autopipe.errors import InputError
from autopipe.executor.drift import DriftReport, Offer, find_drift, offer

EVERY = 5
_KEPT = 3


class DriftWatch:
    """What a pipeline's measured steps say of its plan; made by `Pipeline.watch_drift`.

    Attributes
    ----------
    report : DriftReport or None
        Of the last observed steps, the same on every rank; None before the first.
    """

    def __init__(
        self,
        plan: Plan,
        timeline: Callable[[], Timeline],
        agree: Callable[[Callable[[int], Plan]], Plan],
        *,
        every: int,
        threshold: float,
        is_speaker: bool,
    ) -> None:
        if every < 1:
            raise InputError(f"every={every} looks at no step: pass 1 or more.")
        if not threshold > 0:
            raise InputError(f"threshold={threshold:g} would take any noise for drift: pass a share such as 0.15.")
        self.report: DriftReport | None = None
        self._plan, self._timeline, self._agree = plan, timeline, agree
        self._every, self._threshold, self._is_speaker = every, threshold, is_speaker
        self._steps = 0
        self._seen: deque[Timeline] = deque(maxlen=_KEPT)

    def after_step(self) -> None:
        """Look at the step that has ended, if it is its turn; warn, on the first rank, when other ranks are slow.

        The first step is left out: it allocates and tunes.
        """
        self._steps += 1
        if self._steps % self._every or self._steps == 1:
            return
        self._seen.append(self._timeline())
        known = self.report.slow if self.report is not None else ()
        self.report = find_drift(self._plan, tuple(self._seen), threshold=self._threshold)
        if self._is_speaker and set(self.report.slow) - set(known):
            warnings.warn(f"{self.report} Ask the watch for an offer: a plan for these speeds.", stacklevel=2)

    @typed
    def offer(self, profile: Profile | str | Path, *, time_limit_s: float = 10.0) -> Offer:
        """Return a plan for the measured speeds and how much shorter its step is predicted to be. All ranks call it.

        The pipeline goes on as it was: to apply the plan, save a checkpoint, make a pipeline of the same model with
        it, and load the checkpoint there.

        Parameters
        ----------
        profile : Profile or path
            What the plan was made from; only the first rank reads it.
        time_limit_s : float
            For the planner.

        Raises
        ------
        InputError
            If no step was observed yet.
        """
        report = self.report
        if report is None:
            raise InputError(
                f"no step was observed yet, so nothing is known of speeds: train {self._every} steps first."
            )
        plan = self._plan

        def make(ranks: int) -> Plan:
            document = profile if isinstance(profile, Profile) else load(profile, Profile)
            return offer(report, plan, document, time_limit_s=time_limit_s).plan

        made = self._agree(make)
        return Offer(plan=made, gain=1.0 - made.step_ns / report.step_ns)
