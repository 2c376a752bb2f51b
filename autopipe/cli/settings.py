"""Options that are always the same stand in a file beside the work: autopipe.toml, or pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

import click

from autopipe.errors import InputError

OWN, SHARED = "autopipe.toml", "pyproject.toml"


def defaults(command: str, context: click.Context, folder: Path = Path()) -> dict[str, dict[str, Any]]:
    """Return what the settings say for ``command``, in the form of click's ``default_map``.

    Parameters
    ----------
    folder : Path
        Where ``autopipe.toml`` is looked for, and without one ``pyproject.toml``.

    Raises
    ------
    InputError
        If the file is no TOML, or names a command or an option that there is not.
    """
    found, origin = _read(folder)
    if not found:
        return {}
    group = context.command
    assert isinstance(group, click.Group)
    known = group.list_commands(context)
    for name in found:
        if name not in known:
            raise InputError(f"{origin} has settings for {name!r}, which is no command: {', '.join(known)}.")
    table = found.get(command, {})
    if not isinstance(table, dict):
        raise InputError(f"{origin}: {command} is {table!r}: write a table, [{command}] and lines below it.")
    chosen = group.get_command(context, command)
    assert chosen is not None
    flags = {flag.lstrip("-"): parameter for parameter in chosen.params for flag in parameter.opts if flag[:2] == "--"}
    values = {}
    for option, value in table.items():
        parameter = flags.get(option)
        if parameter is None or parameter.name is None:
            raise InputError(f"{origin}: {command} has no option --{option}; it has {', '.join(sorted(flags))}.")
        values[parameter.name] = _as_typed(value)
    return {command: values}


def _read(folder: Path) -> tuple[dict[str, Any], str]:
    for name, place in ((OWN, ()), (SHARED, ("tool", "autopipe"))):
        path = folder / name
        if not path.is_file():
            continue
        try:
            content: Any = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            if name == SHARED:
                return {}, name  # not our file, so not ours to judge
            raise InputError(f"{name} cannot be read: {error}.") from error
        for key in place:
            content = content.get(key, {}) if isinstance(content, dict) else {}
        return (content if isinstance(content, dict) else {}), name
    return {}, ""


def _as_typed(value: Any) -> Any:
    """Return a setting as it would have been written on the command line: options parse their own text."""
    if isinstance(value, list):
        return [_as_typed(item) for item in value]
    return value if isinstance(value, bool) else str(value)
