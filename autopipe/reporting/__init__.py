"""Reporting: documents become tables, text timelines and traces that people read."""
