"""A stage has one colour, the same in every table, timeline and chart."""

PALETTE = ("#4c9be8", "#e8a33d", "#5cb85c", "#d9647a", "#9b7fd1", "#3fb8af", "#c9b037", "#8a97a6")


def stage_colour(stage: int) -> str:
    """Return the colour of ``stage`` as ``#rrggbb``; colours repeat after the eighth stage."""
    return PALETTE[stage % len(PALETTE)]
