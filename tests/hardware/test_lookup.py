"""The catalogue, users' own devices, and what drivers call them."""

import json

import pytest

from autopipe.errors import DocumentError, InputError
from autopipe.hardware.lookup import catalogue_names, find_device, match_device
from autopipe.hardware.specification import check_specification

GIB = 1024**3


@pytest.mark.parametrize("name", catalogue_names())
def test_every_device_of_the_catalogue_is_complete_and_found_by_its_driver_name(name):
    device = find_device(name)
    check_specification(device)
    assert device.name == name
    assert match_device(device.matches[0], device.memory_bytes.value) == device
    for figures in (device.matrix_flops_per_s, device.vector_flops_per_s):
        assert all(len(figure.source) > 10 for figure in figures.values())


def test_the_catalogue_has_the_devices_that_people_train_on():
    wanted = [
        "v100",
        "t4",
        "a100-40-sxm",
        "a100-80-sxm",
        "a100-40-pcie",
        "a100-80-pcie",
        "h100-sxm",
        "h100-pcie",
        "h200",
        "b200",
        "l4",
        "l40s",
        "rtx3090",
        "rtx4090",
        "a10",
        "mi250x",
        "mi300x",
    ]
    assert all(any(known.startswith(name) for known in catalogue_names()) for name in wanted)


def test_memory_tells_devices_of_one_name_apart():
    small, large = find_device("a100-40-sxm"), find_device("a100-80-sxm")
    both = [device.__class__(**{**as_dict(device), "matches": ("A100",)}) for device in (small, large)]
    assert match_device("a100", 79 * GIB, among=both).name == "a100-80-sxm"
    assert match_device("a100", 40 * GIB, among=both).name == "a100-40-sxm"
    assert match_device("a100", 20 * GIB, among=both) is None


def as_dict(device):
    return {name: getattr(device, name) for name in device.__struct_fields__}


def test_an_unknown_name_brings_the_nearest():
    with pytest.raises(InputError, match=r"Near it: .*h100-sxm"):
        find_device("h100-smx")


def test_a_file_states_only_what_differs_from_its_base(tmp_path):
    path = tmp_path / "mine.json"
    rate = {"value": 500, "source": "mine"}
    path.write_text(json.dumps({"base": "h100-sxm", "name": "mine", "matrix_flops_per_s": {"float16": rate}}))
    device, base = find_device(str(path)), find_device("h100-sxm")
    assert device.matrix_flops_per_s["float16"].value == 500
    assert device.matrix_flops_per_s["bfloat16"] == base.matrix_flops_per_s["bfloat16"]
    assert device.bandwidth_bytes_per_s == base.bandwidth_bytes_per_s
    assert match_device("NVIDIA H100 80GB HBM3", among=[device]) is None


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        ("{", DocumentError, "cannot read the device"),
        ('{"base": "h100-sxm", "colour": 1}', DocumentError, "colour"),
        ('{"base": "h100-sxm", "launch_ns": {"value": -1, "source": ""}}', InputError, "launch_ns"),
        ('{"base": "h101-sxm"}', InputError, "h100-sxm"),
    ],
)
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path, content, error, match):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(error, match=match):
        find_device(str(path))
