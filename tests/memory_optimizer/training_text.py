"""A training graph from its text: enough of it to see what backward reads of forward."""

import re
from dataclasses import dataclass

# What only looks at another value's bytes.
VIEWS = {"Reshape", "Transpose", "Slice", "Expand", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Detach", "Alias"}
_NAME = re.compile(r"%[\w.$]+")


@dataclass
class Node:
    outputs: list
    op: str
    inputs: list
    origin: str  # "recompute of", "gradient of", "fused from" or ""
    module: str


def nodes(text):
    """In the order of the text, YieldOp between forward and backward."""
    found = []
    body = text.partition(" {\n")[2]
    for line in body.splitlines():
        line, _, origin = line.partition("  // ")
        left, equals, right = line.strip().partition(" = ")
        if not equals or line.strip().startswith("return"):
            continue
        op = re.match(r"[\w:.]+", right).group()
        inputs = _NAME.findall(re.sub(r"^[\w:.]+(\(.*?\))?(?= %|$)", "", right))
        kind, colon, place = origin.rpartition(": ")
        module = (place if colon else origin).split("  ")[0].strip()
        found.append(Node(_NAME.findall(left), op, inputs, kind, module))
    return found


class StashText:
    """What backward reads of forward, through views."""

    def __init__(self, text):
        self.nodes = nodes(text)
        border = next(index for index, node in enumerate(self.nodes) if node.op == "YieldOp")
        self.forward, self.backward = self.nodes[:border], self.nodes[border + 1 :]
        made = [node for node in self.forward if node.op not in ("Constant", "ConstantOfShape")]
        self.maker = {name: node for node in made for name in node.outputs}
        self.stashed = {self.base(name) for node in self.backward for name in node.inputs if name in self.maker}

    def base(self, name):
        """The value whose bytes these are."""
        node = self.maker.get(name)
        while node is not None and node.op in VIEWS and node.inputs[0] in self.maker:
            name = node.inputs[0]
            node = self.maker[name]
        return name

    def forward_readers(self, base):
        return [
            node
            for node in self.forward
            if node.op not in VIEWS and any(self.base(name) == base for name in node.inputs)
        ]

    def recomputed(self, *ops):
        return [node for node in self.backward if node.op in ops and node.origin.startswith("recompute of")]
