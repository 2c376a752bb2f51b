"""Simulator: a schedule is run on paper, with times, links and memory."""
