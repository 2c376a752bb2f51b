"""The command line is entered here, and every way out of it is an exit code.

====  =================================================================
0     done
1     something the user can mend: one sentence, no traceback
2     the command was written wrong
3     the inputs are valid and no plan exists; the sentence says what would fit
70    a bug of autopipe's own
====  =================================================================
"""

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import click

from autopipe.cli.group import autopipe
from autopipe.cli.screen import write
from autopipe.errors import AutopipeError, InfeasibleError

USER_ERROR = 1
NO_PLAN = 3
OWN_BUG = 70


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that ``arguments`` (by default those of the process) name, and leave with its exit code."""
    # A terminal that is not UTF-8 is shown what it cannot write as \\u...: that names it, where ? would not.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; what went wrong is said on stderr in a sentence."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            result = autopipe.main(words, prog_name="autopipe", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except AutopipeError as error:
        return _say(error, str(error), NO_PLAN if isinstance(error, InfeasibleError) else USER_ERROR, words)
    except (click.Abort, KeyboardInterrupt) as error:
        return _say(error, "interrupted.", USER_ERROR, words)
    except BrokenPipeError:
        # The reader (for example `head`) is gone; nothing more can be said to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return USER_ERROR
    except Exception as error:
        sentence = (
            f"autopipe failed where it should not: {type(error).__name__}: {error}\n"
            "This is a bug of autopipe, not of your input. Run the command again as `autopipe --traceback ...` "
            "and report what it prints, with the versions of autopipe and torch."
        )
        return _say(error, sentence, OWN_BUG, words)
    return result if isinstance(result, int) else 0


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    write(f"Warning: {message}\n", err=True)


def _say(error: BaseException, sentence: str, code: int, words: list[str]) -> int:
    if words[:1] == ["--traceback"]:
        traceback.print_exception(error)
    write(f"Error: {sentence}\n", err=True)
    return code
