"""Exporters: plans are written for other systems (none yet)."""
