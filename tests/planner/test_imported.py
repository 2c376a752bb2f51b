"""Other planners' graphs are read as their files mean them, and a fault in a file is named by its place."""

import json
import random
from pathlib import Path

import pytest

from autopipe.cli.entry import run
from autopipe.documents.files import load
from autopipe.documents.plan import Plan
from autopipe.errors import AutopipeError, InputError
from autopipe.planner.imported import read_graph
from tests.planner.graphs import bench_json, mutations, two_towers

PIPEDREAM = """\
node1 -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.0, parameter_size=0.000
node2 -- Conv2d(3, 64, kernel_size=(11, 11)) -- forward_compute_time=2.500, backward_compute_time=5.500, \
activation_size=16000000.0, parameter_size=1024.000
node3 -- Split() -- forward_compute_time=1.000, backward_compute_time=1.000, \
activation_size=[8000000.0; 8000000.0], parameter_size=0.000 -- stage_id=1
node4 -- Linear() -- forward_compute_time=4.000, backward_compute_time=6.000, activation_size=4.0, parameter_size=64.000
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node4
"""
LAYERS = """\
name,forward_ms,backward_ms,output_bytes,state_bytes,saved_bytes,inputs
embed,1,2,1600000,100,10,
left,2,4,1600000,200,20,embed
right,2,4,1600000,200,20,embed
join,1,2,0,100,10,left right
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_bench_file_keeps_its_figures_and_its_variants(tmp_path):
    graph = two_towers(2)
    graph["nodes"][1]["variants"] = {"recompute": {"total_s": 0.5, "memory_fixed_bytes": 7.0}}
    graph |= {"memory_cap_bytes": 100.0, "objective": {"combine": "sum", "inflight": "stages_to_end"}}
    dag = read_graph(written(tmp_path / "graph.json", json.dumps(graph)), "bench")
    assert (dag.devices, dag.memory_bytes, dag.stashes) == (2, 100.0, True)
    assert dag.recomputed.seconds[1] == 0.5
    assert dag.recomputed.seconds[2] == dag.plain.seconds[2]
    assert dag.can_recompute.tolist() == [False, True, False, False, False, False]


def test_what_is_asked_for_stands_above_what_the_file_says(tmp_path):
    graph = written(tmp_path / "graph.json", json.dumps(bench_json([1.0] * 5, [(0, 1)], memory_cap_bytes=9.0)))
    dag = read_graph(graph, "bench", devices=5, memory_bytes=77)
    assert (dag.devices, dag.memory_bytes) == (5, 77)


def test_pipedreams_milliseconds_and_lists_of_sizes_are_understood(tmp_path):
    dag = read_graph(written(tmp_path / "graph.txt", PIPEDREAM), "pipedream", devices=2)
    assert dag.plain.seconds.tolist() == pytest.approx([0.0, 0.008, 0.002, 0.010])
    assert dag.edges == ((0, 1), (1, 2), (1, 3), (2, 3))
    moved = {(move.source, move.targets): move.seconds for move in dag.transfers}
    assert moved[1, (2, 3)] == moved[2, (1,)] == moved[3, (1,)] == moved[2, (3,)] == pytest.approx(0.001)
    assert dag.plain.fixed_bytes.tolist() == [0.0, 2048.0, 0.0, 128.0]


def test_a_table_of_layers_may_branch_and_is_a_chain_otherwise(tmp_path):
    branching = read_graph(written(tmp_path / "layers.csv", LAYERS), "csv", devices=2)
    assert branching.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert branching.plain.seconds.tolist() == pytest.approx([0.003, 0.006, 0.006, 0.003])
    chain = read_graph(written(tmp_path / "chain.csv", "forward_us\n1\n2\n3\n"), "csv", devices=2)
    assert chain.edges == ((0, 1), (1, 2))
    assert chain.transfers == ()


def test_a_file_that_does_not_say_how_many_devices_needs_gpus(tmp_path):
    with pytest.raises(InputError, match="--gpus"):
        read_graph(written(tmp_path / "graph.txt", PIPEDREAM), "pipedream")


def test_every_fault_of_a_bench_file_is_a_sentence_that_names_it(tmp_path, capsys):
    for at, (text, fault) in enumerate(mutations(two_towers(2))):
        path = written(tmp_path / f"{at}.json", text)
        assert run(["partition", str(path), "--format", "bench"]) == 1, text[:200]
        said = capsys.readouterr().err
        assert fault in said, said
        assert said.startswith("Error: ")
        assert "Traceback" not in said


@pytest.mark.parametrize(
    ("format", "text", "fault"),
    [
        ("pipedream", PIPEDREAM + "\tnode4 -- node9\n", "line 9"),
        ("pipedream", PIPEDREAM + "\tnode4 -- node2\n", "cycle"),
        ("pipedream", PIPEDREAM + "node4 -- x -- forward_compute_time=1\n", "line 9 has no backward_compute_time"),
        ("pipedream", PIPEDREAM.replace("4.000, backward", "four, backward"), "line 4: forward_compute_time"),
        ("pipedream", PIPEDREAM.replace("=4.000", "=-4.000"), "line 4"),
        ("pipedream", PIPEDREAM.replace("=4.000", "=nan"), "line 4"),
        ("pipedream", PIPEDREAM.replace("node3 -- Split", "node2 -- Split"), "'node2' comes twice"),
        ("pipedream", "what is this\n", "line 1"),
        ("pipedream", "", "no node"),
        ("csv", LAYERS + "join,1,1,1,1,1,left\n", "'join' comes twice"),
        ("csv", LAYERS + "more,fast,1,1,1,1,left\n", "row 5, forward_ms"),
        ("csv", LAYERS + "more,1,-1,1,1,1,left\n", "row 5"),
        ("csv", LAYERS + "more,1,inf,1,1,1,left\n", "row 5"),
        ("csv", LAYERS + "more,1,1,1,1,1,nobody\n", "'nobody'"),
        ("csv", LAYERS + "more,1\n", "row 5 has 2 cells"),
        ("csv", LAYERS.replace("right,2,4,1600000,200,20,embed", "right,2,4,1600000,200,20,join"), "cycle"),
        ("csv", "name,colour\na,b\n", "'colour'"),
        ("csv", "name\na\n", "forward"),
        ("csv", 'name,forward_s\n"a,1\n', "no CSV"),
        ("csv", "", "empty"),
    ],
)
def test_every_fault_of_a_text_file_is_a_sentence_that_names_it(format, text, fault, tmp_path, capsys):
    path = written(tmp_path / "graph", text)
    assert run(["partition", str(path), "--format", format, "--gpus", "2"]) == 1
    assert fault in capsys.readouterr().err


def test_damaged_files_are_never_a_bug_of_ours(tmp_path):
    rng = random.Random(0)
    said = []
    texts = {"bench": json.dumps(two_towers(2)), "pipedream": PIPEDREAM, "csv": LAYERS}
    for round_ in range(150):
        format = rng.choice(sorted(texts))
        damaged = bytearray(texts[format].encode())
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice(b'0,-"{}[] \n\xff9.e')
        path = tmp_path / f"{round_}"
        path.write_bytes(bytes(damaged))
        try:
            dag = read_graph(path, format, devices=2)
        except AutopipeError as error:
            said.append(str(error))
        else:
            said.append(f"{dag.nodes} nodes.")
    assert all(sentence.endswith((".", "'")) for sentence in said)


def test_a_graph_is_planned_and_its_assignment_written(tmp_path, capsys):
    graph = written(tmp_path / "graph.json", json.dumps(two_towers(6)))
    plan, assigned = tmp_path / "plan.json", tmp_path / "assignment.json"
    options = ["--format", "bench", "--objective", "bottleneck", "--stages", "auto"]
    assert run(["partition", str(graph), *options, "-o", str(plan), "--assignment", str(assigned)]) == 0
    said = capsys.readouterr().out
    assert "no cut into convex stages has a lower one (gap 0" in " ".join(said.split())
    document = load(plan, Plan)
    answer = json.loads(assigned.read_text())
    assert answer["instance"] == str(graph)
    assert answer["assignment"] == {name: index for index, stage in enumerate(document.stages) for name in stage.layers}
    assert sum(stage.end - stage.begin for stage in document.stages) == 14


def test_the_same_graph_gives_the_same_plan_byte_for_byte(tmp_path, capsys):
    graph = written(tmp_path / "graph.json", json.dumps(two_towers(6)))
    texts = []
    for _ in range(2):
        assert run(["partition", str(graph), "--format", "bench", "--json"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_a_graph_that_does_not_fit_leaves_with_its_own_code_and_names_the_cap(tmp_path, capsys):
    graph = two_towers(2)
    for node in graph["nodes"]:
        node["memory_fixed_bytes"] = float(1 << 30)
    path = written(tmp_path / "graph.json", json.dumps(graph))
    assert run(["partition", str(path), "--format", "bench", "--memory", "2GiB"]) == 3
    assert "2.00 GiB a device" in capsys.readouterr().err


def test_a_number_of_stages_that_cannot_be_is_refused(tmp_path, capsys):
    path = written(tmp_path / "graph.json", json.dumps(two_towers(2)))
    assert run(["partition", str(path), "--format", "bench", "--stages", "7"]) == 1
    assert "ask for 1 to 2" in capsys.readouterr().err
    assert run(["partition", str(path), "--format", "bench", "--stages", "none"]) == 2
    assert run(["partition", str(path), "--format", "bench", "--objective", "step"]) == 2


def test_a_profile_still_needs_gpus_and_a_batch(tmp_path, capsys):
    assert run(["partition", "profile.json", "--gpus", "2"]) == 2
    assert "--batch" in capsys.readouterr().err
