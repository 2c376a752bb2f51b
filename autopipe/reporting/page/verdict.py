"""The verdict says in three sentences how good a plan is, what limits it, and whether the prediction came true."""

from autopipe.documents.plan import Plan
from autopipe.documents.timeline import Timeline
from autopipe.reporting.plan_table import certificate_sentence
from autopipe.units import format_share, format_time


def verdict(plan: Plan, measured: Timeline | None) -> tuple[str, ...]:
    """Return the sentences at the top of the page."""
    gap = max(plan.certificate.gap, 0.0)
    distance = (
        f"The step of {format_time(plan.step_ns)} is the best there is: no plan of the searched kind can be under "
        f"{format_time(plan.certificate.step_bound_ns)}."
        if round(gap, 3) == 0
        else f"The step of {format_time(plan.step_ns)} is at most {format_share(gap)} above the best: no plan of the "
        f"searched kind can be under {format_time(plan.certificate.step_bound_ns)}."
    )
    sentences = [distance, f"What limits it: {plan.binding}"]
    if measured is not None:
        error = plan.step_ns / measured.step_ns - 1 if measured.step_ns else 0.0
        sentences.append(
            f"Measured: {format_time(measured.step_ns)}; predicted {format_time(plan.step_ns)} ({100 * error:+.1f} %)."
        )
    return tuple(sentences)


def proof(plan: Plan) -> str:
    """Return the certificate in words."""
    return certificate_sentence(plan.certificate).plain
