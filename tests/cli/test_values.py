"""What people write behind options, and what is refused."""

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopipe.cli.values import SizeParameter, SizesParameter, TensorParameter, TensorSpec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("8", TensorSpec(None, (8,), None, None)),
        ("8x1024:int64", TensorSpec(None, (8, 1024), "int64", None)),
        ("8x1024:int64<50257", TensorSpec(None, (8, 1024), "int64", 50257)),
        ("mask=8x4:bool", TensorSpec("mask", (8, 4), "bool", None)),
    ],
)
def test_a_tensor_is_written_as_shape_dtype_and_limit(text: str, spec: TensorSpec) -> None:
    assert TensorParameter().convert(text, None, None) == spec


@pytest.mark.parametrize(
    "text", ["", "8x", "x8", "8X8", "8x8:", "8x8:int64<", "8x8<5", "=8", "-1x2", "8:int64<-3", "8 x 8"]
)
def test_what_is_no_tensor_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write for example 8x1024"):
        TensorParameter().convert(text, None, None)


names = st.none() | st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
shapes = st.lists(st.integers(0, 10**6), min_size=1, max_size=5).map(tuple)
dtypes = st.none() | st.sampled_from(["int64", "float32", "bool", "bfloat16"])


@given(names, shapes, dtypes, st.none() | st.integers(0, 10**9))
def test_every_tensor_is_read_as_it_was_written(
    name: str | None, shape: tuple[int, ...], dtype: str | None, high: int | None
) -> None:
    spec = TensorSpec(name, shape, dtype, high if dtype else None)
    text = f"{name}=" if name else ""
    text += "x".join(map(str, shape))
    text += f":{dtype}" if dtype else ""
    text += f"<{high}" if dtype and high is not None else ""
    assert TensorParameter().convert(text, None, None) == spec


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("24 GB", 24 * 10**9),
        ("1.5gib", 3 * 2**29),
        ("4096", 4096),
        ("512M", 512 * 10**6),
        ("1Ki", 1024),
    ],
)
def test_a_size_has_a_binary_or_a_decimal_unit(text: str, size: int) -> None:
    assert SizeParameter().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "80 PiB", "1,5GiB", "nan", "0", "1e9"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write for example 80GiB"):
        SizeParameter().convert(text, None, None)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6))
def test_sizes_come_back_ascending_and_once(sizes: list[int]) -> None:
    assert SizesParameter().convert(",".join(map(str, sizes)), None, None) == tuple(sorted(set(sizes)))


@pytest.mark.parametrize("text", ["", "1,", "0", "1,-2", "a", "1;2"])
def test_what_is_no_list_of_sizes_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write for example 1,2,4"):
        SizesParameter().convert(text, None, None)
