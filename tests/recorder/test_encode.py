import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from autopipe.documents.graph import Node
from autopipe.errors import CaptureError, DocumentError
from autopipe.recorder.encode import decode, decode_node, encode, encode_node

NODES = {name: fx.Graph().placeholder(name) for name in ("x", "y")}

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.complex_numbers(),
    st.sampled_from(
        [
            torch.float32,
            torch.int64,
            torch.bool,
            torch.device("cpu"),
            torch.device("cuda", 1),
            torch.channels_last,
            torch.strided,
            ...,
            torch.Size([2, 3]),
            range(1, 9, 2),
            NODES["x"],
            NODES["y"],
        ]
    ),
)
arguments = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner, inner).map(lambda ends: slice(*ends)),
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, slice):
        return all(same(getattr(a, end), getattr(b, end)) for end in ("start", "stop", "step"))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return bool(a == b) or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


@given(arguments)
def test_arguments_survive_json(value: Any) -> None:
    form = json.loads(json.dumps(encode(value), allow_nan=False))
    assert same(decode(form, NODES), value)


def test_value_without_a_form_is_refused() -> None:
    with pytest.raises(CaptureError, match="type Event"):
        encode(torch.Event() if hasattr(torch, "Event") else object())


@pytest.mark.parametrize(
    "form",
    [
        {"node": "z"},
        {"dtype": "load"},
        {"dtype": "__class__"},
        {"memory_format": "float32"},
        {"device": "no such device"},
        {"class": "os.system"},
        {"class": "subprocess.Popen"},
        {"slice": [1]},
        {"eval": "1"},
        {"tuple": 3},
        {"float": "x"},
        {"a": 1, "b": 2},
        {},
    ],
)
def test_damaged_argument_is_refused(form: Any) -> None:
    with pytest.raises(DocumentError):
        decode(form, NODES)


def test_argument_nested_too_deeply_is_refused() -> None:
    form: Any = 1
    for _ in range(100):
        form = [form]
    with pytest.raises(DocumentError, match="nested"):
        decode(form, NODES)


@pytest.mark.parametrize(
    "node",
    [
        Node(name="n", op="call_function", target="os.system", arguments=["true"]),
        Node(name="n", op="call_function", target="builtins.eval", arguments=["1"]),
        Node(name="n", op="call_function", target="builtins.__import__", arguments=["os"]),
        Node(name="n", op="call_function", target="torch.load", arguments=["file"]),
        Node(name="n", op="call_function", target="torch.from_file", arguments=["file"]),
        Node(name="n", op="call_function", target="operator.attrgetter", arguments=["x"]),
        Node(name="n", op="call_function", target="class:subprocess.Popen", arguments=[["true"]]),
        Node(name="n", op="call_function", target="builtins.getattr", arguments=[{"node": "x"}, "__class__"]),
        Node(name="n", op="call_function", target="builtins.getattr", arguments=[{"node": "x"}]),
        Node(name="n", op="call_method", target="__reduce_ex__", arguments=[{"node": "x"}, 2]),
        Node(name="n", op="call_method", target="register_hook", arguments=[{"node": "x"}]),
        Node(name="n", op="call_method", target="numpy(); evil", arguments=[{"node": "x"}]),
        Node(name="n", op="placeholder", target="x): import os #"),
        Node(name="n", op="placeholder", target="*x"),
        Node(name="n", op="placeholder", target="class"),
        Node(name="n", op="call_function", target="torch.cat", keywords={"a=evil(), b": 1}),
        Node(name="n", op="exec", target="x"),
    ],
)
def test_node_that_names_what_a_graph_may_not_is_refused(node: Node) -> None:
    with pytest.raises(DocumentError):
        decode_node(node, NODES)


def test_function_that_no_document_can_name_is_refused() -> None:
    with pytest.raises(CaptureError, match="cannot name"):
        encode_node(fx.Graph().call_function(torch.load, ("file",)))
