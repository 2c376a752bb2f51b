"""Situations that users of other pipeline systems met; `pytest -m case` runs the tests of them all."""

import ast
from pathlib import Path

CASES = {
    1: "uneven micro-batches, and batches of other sizes",
    2: "fewer micro-batches than ranks, under every schedule",
    3: "boundary tensors of 64 MB in both directions at once",
    4: "interleaved with micro-batches that the ranks do not divide",
    5: "two ranks with two stages each: the peer before is the one behind",
    6: "a loader that ends with a part of a batch",
    7: "a rank that raises, or dies, in the middle of a step",
    8: "ranks that start with different plans",
    9: "several steps before the optimizer's",
    10: "labels that do not count, a micro-batch without any that does",
    11: "clipping by norms over stages with a tied weight",
    12: "a split backward with replicas",
    13: "BatchNorm over micro-batches, with recompute too",
    14: "dropout, with and without recompute, on any number of stages",
    15: "a random model under a random plan",
    16: "integers, booleans, bytes and complex numbers beside bfloat16",
    17: "one to five outputs of a stage, some unused, one None",
    18: "frozen stages: no gradient travels where none is needed",
    19: "a weight tied over stages, trained, saved, loaded at other sizes",
    20: "skips over stages; a memory that every decoder stage reads; planned automatically",
    21: "an object with a loss goes out",
    22: "lengths that change from step to step and from micro-batch to micro-batch",
    23: "evaluation between training steps, at other sizes, and before the first",
    24: "setting up leaves no trace, and building never runs the model",
    25: "a stage that begins in place",
    26: "a loss inside the model",
    27: "an overflow on one stage",
    28: "each stage compiled",
    29: "live tensors do not grow with the micro-batches, whatever a stage ends in",
}


def test_every_case_has_a_test() -> None:
    marked = {number for path in Path(__file__).parent.rglob("test_*.py") for number in _marked(path)}
    assert marked == set(CASES)


def _marked(path: Path) -> set[int]:
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.case"]
    return {ast.literal_eval(argument) for call in marks for argument in call.args}
