"""Exporters: plans are written for other systems."""
