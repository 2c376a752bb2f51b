"""The command line: one command a file, loaded when it is called, so that ``autopipe --help`` starts at once."""

from autopipe.cli.entry import main

__all__ = ["main"]
