"""A recorded model small enough to check by hand, for the tests that draw it."""

from autopipe.documents.graph import ForbiddenCut, Graph, Layer, Node, Parameter, Value
from autopipe.units import MIB


def graph() -> Graph:
    """Five layers: an embedding tied to the head, two blocks that are alike, one that writes the next one's buffer."""
    names = ("tokens", "blocks.0", "blocks.1", "norm", "head")
    kinds = ("Embedding", "Block", "Block", "Norm<T>", "Linear")
    weights = ("tokens.weight", "blocks.0.weight", "blocks.1.weight", "norm.mean", "tokens.weight")
    return Graph(
        model="GPT",
        nodes=tuple(Node(name=f"n{index}", op="call_module", target=name) for index, name in enumerate(names)),
        parameters=tuple(
            Parameter(name=name, shape=(MIB // 4,), dtype="float32", bytes=MIB, requires_grad=True)
            for name in dict.fromkeys(weights)
        ),
        layers=tuple(
            Layer(name=name, kind=kind, nodes=(f"n{index}",), parameters=(weight,), group=(0, 1, 1, 2, 3)[index])
            for index, (name, kind, weight) in enumerate(zip(names, kinds, weights, strict=True))
        ),
        values=(
            Value(name="ids", producer=0, consumers=(4,), shape=(2, 16), dtype="int64", bytes=256),
            *(
                Value(
                    name=f"n{index}",
                    producer=index,
                    consumers=(index + 1,),
                    requires_grad=True,
                    shape=(2, 16, 64),
                    dtype="float32",
                    bytes=8192,
                )
                for index in range(4)
            ),
        ),
        forbidden_cuts=(ForbiddenCut(position=4, reason="`norm.mean` is written & read"),),
    )
