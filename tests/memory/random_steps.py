"""Random forward graphs as text: chains, residuals and branches of ops that cost much or little and make much or
little."""

import random

WIDTHS = (32, 64, 128, 256)


class _Writer:
    def __init__(self, seed, ops):
        self.random = random.Random(seed)
        self.inputs, self.nodes, self.values = ["%x: f32[N, 64] input"], [], [("x", 64)]
        for _ in range(ops):
            self.step()

    def parameter(self, *sizes):
        name = f"p{len(self.inputs)}"
        self.inputs.append(f"%{name}: f32[{', '.join(map(str, sizes))}] param")
        return f"%{name}"

    def add(self, width, text, further=""):
        name = f"v{len(self.nodes)}"
        self.nodes.append(f"  %{name}: f32[N, {width}]{further.replace('NAME', name)} = {text}")
        self.values.append((name, width))

    def step(self):
        # Mostly the newest value; now and then a branch from an older one.
        value, width = self.values[-1 if self.random.random() < 0.8 else -min(3, len(self.values))]
        others = [name for name, other in self.values[-6:] if other == width and name != value]
        kind = self.random.choice(["linear", "linear", "point", "point", "norm", "join", "join", "dropout", "mask"])
        if kind == "join" and others:
            self.add(width, f"{self.random.choice(['Add', 'Mul'])} %{value}, %{self.random.choice(others)}")
        elif kind == "mask" and others:
            other = self.random.choice(others)
            mask = f"v{len(self.nodes)}"
            self.nodes.append(f"  %{mask}: bool[N, {width}] = Greater %{value}, %{other}")
            self.add(width, f"Where %{mask}, %{value}, %{other}")
        elif kind == "norm":
            pair = f"{self.parameter(width)}, {self.parameter(width)}"
            further = ", %NAME_mean: f32[N], %NAME_scale: f32[N]"
            self.add(width, f"LayerNormalization(axis=1, epsilon=1e-05) %{value}, {pair}", further)
        elif kind == "dropout":
            self.add(width, f"Dropout(ratio=0.1, stream={len(self.nodes)}) %{value}")
        elif kind == "linear":
            to = self.random.choice(WIDTHS)
            pair = f"{self.parameter(to, width)}, {self.parameter(to)}"
            self.add(to, f"Gemm(alpha=1.0, beta=1.0, transA=false, transB=true) %{value}, {pair}")
        else:
            self.add(width, f"{self.random.choice(['Gelu', 'Tanh', 'Sigmoid', 'Exp'])} %{value}")

    def text(self):
        body = "\n".join(self.nodes)
        return f"graph @drawn({', '.join(self.inputs)}) {{\n{body}\n  return %{self.values[-1][0]} output\n}}\n"


def random_step(seed, ops):
    return _Writer(seed, ops).text()
