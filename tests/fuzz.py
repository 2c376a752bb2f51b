"""Fuzz: documents and command lines that are almost right, made from right ones by a seeded generator."""

import contextlib
import io
import json
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NASTY_TEXT = (
    "",
    "-1",
    "0",
    "1e999",
    "nan",
    "-0.0",
    "99999999999999999999",
    "9223372036854775807",
    "--",
    "-",
    "é\u202eabc",
    "[bold]x[/]",
    "<script>alert(1)</script>",
    "{{ 7 * 7 }}",
    "a\nb\tc",
    "a" * 10_000,
    "../no/such/folder",
    "/dev/null/x",
    ".",
    "1x",
    "=",
    "0x10",
    "∞",
    "'; rm -rf x; '",
    "\udcff",  # what the interpreter makes of a byte that is no UTF-8
)
NASTY_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**30,
    0.5,
    1e308,
    [],
    {},
    [[]],
    "",
    "x",
    "\ud800",
    *NASTY_TEXT[5:20],
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A case that did not end as a command must: its seed, its words, and what happened."""

    seed: int
    words: tuple[str, ...]
    what: str


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Right files by name, and the command lines that read them; ``{name}`` stands for a file's path."""

    files: dict[str, bytes]
    lines: tuple[tuple[str, ...], ...]


def run_case(seed: int, corpus: Corpus, folder: Path) -> Finding | None:
    """Run one command on files and words of which some are mutated; return what is wrong, if anything.

    Exit codes must be 0 to 3, with no traceback, no output file after a failure, and no temporary file left.
    """
    from autopipe.cli.entry import run

    draw = random.Random(seed)
    line = draw.choice(corpus.lines)
    used = [name for name in corpus.files if any("{" + name + "}" in word for word in line)]
    paths = {}
    victim = draw.choice(used) if used and draw.random() < 0.75 else None
    for name in used:
        content = corpus.files[name]
        if name == victim:
            content = mutated(content, draw)
        path = folder / f"{name}{suffix(name)}"
        path.write_bytes(content)
        paths[name] = str(path)
    words = [word.format(out=str(folder / "out"), **paths) for word in line]
    if victim is None:
        words = mutated_words(words, draw)
    before = set(folder.iterdir())
    # As the interpreter opens them.
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="surrogateescape")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    try:
        # A mutated word may be taken for a file to write.
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words)
    except BaseException:
        return Finding(seed=seed, words=tuple(words), what=traceback.format_exc()[-1500:])
    err.flush()
    said = err.buffer.getvalue().decode(errors="replace")  # type: ignore[attr-defined]
    made = sorted(path.name for path in set(folder.iterdir()) - before)
    for name in made:
        path = folder / name
        if path.is_file():
            path.unlink()
    if code not in (0, 1, 2, 3):
        return Finding(seed=seed, words=tuple(words), what=f"exit code {code}: {said[-800:]}")
    if "Traceback (most recent call last)" in said:
        return Finding(seed=seed, words=tuple(words), what=said[-1500:])
    if code != 0 and not said.strip():
        return Finding(seed=seed, words=tuple(words), what=f"exit code {code} without a word")
    if code != 0 and made:
        return Finding(seed=seed, words=tuple(words), what=f"exit code {code} and files left: {made}")
    return None


def suffix(name: str) -> str:
    """Return the ending by which commands know a file."""
    return {"grid": ".csv", "table": ".csv", "dream": ".txt"}.get(name, ".json")


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return a document with a few faults: in its bytes, or in its values."""
    if draw.random() < 0.35:
        return _bytes(content, draw)
    try:
        value = json.loads(content)
    except ValueError:
        return _bytes(content, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        value = _value(value, draw)
    try:
        return json.dumps(value).encode()
    except UnicodeEncodeError:
        return b"\xff\xfe"


def mutated_words(words: list[str], draw: random.Random) -> list[str]:
    """Return a command line with a few faults."""
    words = list(words)
    for _ in range(draw.choice((1, 1, 2, 3))):
        place = draw.randrange(1, len(words)) if len(words) > 1 else 0
        match draw.randrange(5):
            case 0:
                words[place] = draw.choice(NASTY_TEXT)
            case 1:
                words.insert(place, draw.choice(NASTY_TEXT))
            case 2 if len(words) > 1:
                del words[place]
            case 3:
                words.insert(place, words[draw.randrange(len(words))])
            case _:
                word = words[place]
                at = draw.randrange(len(word) + 1)
                words[place] = word[:at] + draw.choice(NASTY_TEXT[:12]) + word[at:]
    # What would run a command of the user's own, or read the terminal, is not a mutation of ours.
    return [word.replace("\0", "") for word in words]


def _bytes(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        place = draw.randrange(len(data) + 1)
        match draw.randrange(5):
            case 0:
                data[place : place + 1] = bytes([draw.randrange(256)])
            case 1:
                del data[place : place + draw.choice((1, 2, 40))]
            case 2:
                data[place:place] = data[:64]
            case 3:
                del data[place:]
            case _:
                data[place:place] = draw.choice((b"[" * 5000, b"\x00", b"\xff", b'"', b"1e400", b"-", b"{}", b",,"))
    return bytes(data)


def _value(value: Any, draw: random.Random) -> Any:
    """Return a JSON value with one place changed."""
    places = list(_places(value))
    if not places:
        return draw.choice(NASTY_VALUES)
    holder, key = draw.choice(places)
    match draw.randrange(6):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(NASTY_TEXT[:20])] = holder[key]
        case 2 if isinstance(holder, list):
            holder.insert(int(key), holder[int(key)])
        case 3 if isinstance(holder, list):
            del holder[int(key)]
        case 4 if isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] = draw.choice((-holder[key], holder[key] + 1, holder[key] * 1000, 2**53, 2**63 - 1))
        case _:
            holder[key] = draw.choice(NASTY_VALUES)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def make_corpus(folder: Path) -> Corpus:
    """Return files of every kind that commands read, each made by a command from a small model."""
    from autopipe.cli.entry import run

    model = folder / "model.py"
    model.write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), "
        "nn.ReLU(), nn.Linear(8, 4))\n"
    )

    def made(*words: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = run(list(words))
        if code:
            raise RuntimeError(f"{words} ended with {code}: {said.getvalue()}")

    profile, plan, timeline = (str(folder / f"{name}.json") for name in ("profile", "plan", "timeline"))
    made("profile", f"{model}:build", "--input", "8x8", "--budget", "1", "-o", profile)
    made("partition", profile, "--gpus", "2", "--batch", "32", "-o", plan)
    made("simulate", plan, "-o", timeline)
    cluster = {
        "format": "autopipe.cluster",
        "version": 1,
        "devices": [{"memory_bytes": 2**30}, {"memory_bytes": 2**31, "speed": 2.0}],
        "intra_node": {"latency_ns": 1000, "bytes_per_s": 10**10},
    }
    files = {
        "profile": Path(profile).read_bytes(),
        "plan": Path(plan).read_bytes(),
        "timeline": Path(timeline).read_bytes(),
        "cluster": json.dumps(cluster).encode(),
        "grid": b"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
        "table": b"layer,forward_ms,backward_ms\na,1,2\nb,1,2\nc,2,4\n",
    }
    return Corpus(files=files, lines=LINES)


LINES: tuple[tuple[str, ...], ...] = (
    ("partition", "{profile}", "--gpus", "2", "--batch", "16", "--time-limit", "1", "-o", "{out}.json"),
    ("partition", "{profile}", "--gpus", "2", "--batch", "16", "--memory", "1GiB", "--time-limit", "1", "--json"),
    ("partition", "{profile}", "--cluster", "{cluster}", "--batch", "16", "--time-limit", "1"),
    ("partition", "{profile}", "--cluster", "1x2:h100-sxm:net=50GB/s", "--batch", "8", "--time-limit", "1"),
    ("partition", "{table}", "--format", "csv", "--gpus", "2", "--time-limit", "1"),
    ("simulate", "{plan}", "-o", "{out}.json"),
    ("simulate", "{plan}", "--trace", "{out}.json"),
    ("simulate", "{plan}", "--json"),
    ("simulate", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--times", "1,1,1", "--link", "0.1"),
    ("report", "{plan}", "-o", "{out}.html"),
    ("report", "{plan}", "{timeline}", "--profile", "{profile}", "-o", "{out}.html"),
    ("export", "{plan}", "--to", "megatron", "--profile", "{profile}"),
    ("export", "{plan}", "--to", "deepspeed"),
    ("export", "{plan}", "--to", "torchtitan"),
    ("export", "{plan}", "--to", "accelerate"),
    ("schedule", "1f1b", "--stages", "4", "--micro-batches", "8"),
    ("schedule", "interleaved", "--stages", "2", "--micro-batches", "4", "--virtual", "2", "--actions"),
    ("schedule", "{grid}"),
    ("schedule", "{grid}", "--csv"),
)


def fuzz(
    seeds: range, corpus: Corpus, folder: Path, *, started: Callable[[int], None] = lambda seed: None
) -> list[Finding]:
    """Return what goes wrong in the cases of ``seeds``; ``started`` is told of each before it runs."""
    findings = []
    for seed in seeds:
        started(seed)
        finding = run_case(seed, corpus, folder)
        if finding is not None:
            findings.append(finding)
            print(finding.seed, ascii(finding.words), ascii(finding.what), sep="\n", file=sys.__stdout__, flush=True)
    return findings
