"""Fails on any #include, CMake dependency or Python import that goes against the arrows between folders, on an arrow
that no file uses, and on a file that names an op (Op::kMatMul) where facts of ops are asked for instead.

The arrows are those of docs/architecture.md. An arrow carries on: who may include `ir` may include what `ir` may.
"""

import ast
import re
import sys
from pathlib import Path

# folder of src/ -> the folders it is built on, besides itself and what those are built on
ARROWS = {
    "base": (),
    "opset": ("base",),
    "pack": ("base",),
    "symbolic": ("base",),
    "ir": ("opset", "symbolic"),
    "ops": ("ir",),
    "lower": ("ops",),
    "grad": ("ops",),
    "passes": ("ops",),
    "kernels": ("opset",),
    "torch_symbols": ("base",),
    "program": ("opset",),
    "schedule": ("ir",),
    "emit": ("ops", "schedule", "program"),
    "bind": ("program", "kernels", "pack"),
    "memory": ("passes", "schedule", "emit", "bind"),
    "report": ("memory",),
    "runtime": ("bind",),
    "session": ("lower", "grad", "report", "runtime"),
}
# The planner reads which kernels there are (kernel.h declares them), never calls one.
KERNEL_LISTS = re.compile(r"kernels/kernel\.h$")
LIST_READERS = ("emit",)

# module or subpackage of python/lowtide -> the others it may import
PYTHON_ARROWS = {
    "_lowtide": (),
    "errors": (),
    "log": (),
    "guards": ("_lowtide", "errors"),
    "utils": ("_lowtide", "errors", "environment", "capture", "guards", "ported_names"),
    "distributed": ("errors",),
    "capture": ("_lowtide", "errors", "guards", "log", "distributed"),
    "onnx_io": ("_lowtide", "errors"),
    "environment": ("_lowtide", "log"),
    "store": ("_lowtide", "errors", "log", "environment", "capture", "guards"),
    "ortmodule": (
        "_lowtide",
        "errors",
        "log",
        "environment",
        "capture",
        "guards",
        "distributed",
        "store",
        "onnx_io",
        "ported_names",
        "utils",
    ),
    "compile_backend": ("_lowtide", "errors", "capture", "ortmodule"),
    "convergence": ("_lowtide", "errors", "capture", "guards", "ortmodule", "utils"),
    "cli": (
        "_lowtide",
        "errors",
        "environment",
        "store",
        "capture",
        "distributed",
        "onnx_io",
        "ortmodule",
        "utils",
        "convergence",
        "report",
    ),
    "report": (),
    "optim": ("ported_names",),
    "ported_names": (),
    "__main__": ("cli",),
    "__init__": ("_lowtide", "ported_names"),
}
ONLY_IN = {"onnx": ("onnx_io",)}  # a third-party package -> the modules that may import it
NEVER_IN_PACKAGE = ("transformers",)

# Folder or file of src/ -> why it names ops. All others ask what an op is (opset/op.h: traits, is_view, is_yield …) or
# call a rule that stands with the op (LT_SIMPLIFY …), so that a new op is no edit there.
NAMES_OPS = {
    "opset": "the list",
    "ops": "what is known of each op",
    "lower": "makes ops of ATen's",
    "grad": "makes gradients",
    "kernels": "compute ops",
    "ir/parse.cpp": "a bare target is written for an Aten node",
    "passes/bias_sum.cpp": "takes a bias out of a product",
    "passes/drop_unlabelled_rows.cpp": "makes Compress and DataSize",
    "passes/exact_factors.cpp": "changes Mul and Div",
    "passes/fuse_attention.cpp": "makes Attention",
    "passes/fuse_bias_dropout.cpp": "makes BiasDropout",
    "passes/fuse_bias_gelu.cpp": "makes BiasGelu and FastGelu",
    "passes/fuse_bias_softmax.cpp": "makes BiasSoftmax",
    "passes/fuse_gelu.cpp": "makes Gelu, FastGelu, QuickGelu and Swish",
    "passes/fuse_linear_cross_entropy.cpp": "makes LinearCrossEntropyLoss",
    "passes/fuse_linear_cross_entropy_grad.cpp": "makes LinearCrossEntropyLossGrad",
    "passes/fuse_matmul.cpp": "makes FusedMatMul",
    "passes/fuse_rms_norm.cpp": "makes SimplifiedLayerNormalization",
    "passes/fuse_rotary.cpp": "makes RotaryEmbedding",
    "passes/gather_onto.cpp": "makes GatherGrad with a third operand",
    "passes/number_pool_places.cpp": "changes MaxPool and its gradient",
    "passes/pack_attention_grad.cpp": "packs AttentionGrad's outputs",
    "passes/panel_linear_cross_entropy.cpp": "makes PanelLinearCrossEntropyLoss",
    "passes/patch_conv.cpp": "makes Gemm of Conv",
    "passes/pattern.cpp": "makes SameGradient",
    "passes/simplify_attention.cpp": "makes Attention of Attention",
    "passes/token_region.cpp": "which ops compute token by token",
    "passes/upstream_rows.cpp": "which ops compute row by row",
    "passes/upstream_rows_write.cpp": "makes Compress and MaskedScatter",
    "memory/compress": "makes PackBits and UnpackBits",
    "emit/places.cpp": "makes Copy steps",
    "runtime/callers_tensors.cpp": "copies a caller's tensors with the kernels of Copy",
}
OP_NAME = re.compile(r"\bOp::k[A-Z]\w*")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CMAKE_CALL = re.compile(r"\blowtide_(?:library|tests)\(\s*(\w+)([^)]*)\)")


def reachable(folder):
    """The folders that `folder` may include, itself among them."""
    found, pending = set(), [folder]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(ARROWS[name])
    return found


def refused_include(folder, path):
    """Why a file of src/`folder` may not include "path", or None."""
    target = path.split("/")[0]
    if "/" not in path:
        return "includes are relative to src/"
    if target == "lowtide":
        return None if folder == "session" else "only session implements the public headers"
    if target not in ARROWS:
        return f"no folder of src/ is called {target}"
    if target in reachable(folder):
        return None
    if folder in LIST_READERS and KERNEL_LISTS.match(path):
        return None
    return f"{folder} is not built on {target}"


def check_cpp(root):
    for path in sorted(p for suffix in ("h", "cpp", "inc", "def") for p in (root / "src").rglob(f"*.{suffix}")):
        folder = path.relative_to(root / "src").parts[0]
        text = path.read_text()
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            quote, included = match.groups()
            if folder not in ARROWS:
                yield f"{path.relative_to(root)}: src/{folder} has no arrows in tools/check_layers.py"
                break
            reason = None
            if quote == '"':
                reason = refused_include(folder, included)
            elif re.match(r"Python\.h|nanobind/|torch/|ATen/|c10/", included):
                reason = "only python/bindings knows Python, and nothing knows PyTorch's C++ headers"
            if reason:
                yield f"{path.relative_to(root)}:{line}: includes {included}: {reason}"
    for path in sorted((root / "include").rglob("*.h")):
        for quote, included in INCLUDE.findall(path.read_text()):
            if quote == '"' and not included.startswith("lowtide/"):
                yield f"{path.relative_to(root)}: a public header includes {included}, which users do not have"


def check_cmake(root):
    for path in sorted((root / "src").glob("*/CMakeLists.txt")):
        folder = path.parent.name
        if folder not in ARROWS:
            continue
        allowed = reachable(folder) | ({"kernels"} if folder in LIST_READERS else set())
        for name, body in CMAKE_CALL.findall(path.read_text()):
            depends = body.partition("DEPENDS")[2].split()
            for dependency in depends:
                if dependency in ARROWS and dependency not in allowed:
                    yield f"{path.relative_to(root)}: {name} depends on {dependency}: {folder} is not built on it"


def imported_modules(path, package_path):
    """Yields (line, dotted name) for each import of a file of the package; relative ones made absolute."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = ["lowtide", *package_path][: len(package_path) + 2 - node.level] if node.level else []
            module = ".".join([*parts, *((node.module or "").split(".") if node.module else [])])
            if module == "lowtide":
                for alias in node.names:
                    yield node.lineno, f"lowtide.{alias.name}"
            else:
                yield node.lineno, module


def check_python(root):
    package = root / "python" / "lowtide"
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        module = relative.parts[0].removesuffix(".py")
        where = path.relative_to(root)
        if module not in PYTHON_ARROWS:
            yield f"{where}: lowtide.{module} has no arrows in tools/check_layers.py"
            continue
        for line, name in imported_modules(path, relative.parts[:-1]):
            top, _, rest = name.partition(".")
            target = rest.split(".")[0]
            if top == "lowtide" and target in PYTHON_ARROWS and target not in (module, *PYTHON_ARROWS[module]):
                yield f"{where}:{line}: imports {name}: lowtide.{module} is not built on it"
            if top in NEVER_IN_PACKAGE or module not in ONLY_IN.get(top, (module,)):
                yield f"{where}:{line}: imports {top}: not in lowtide.{module}"


def names_ops(path):
    """The entry of NAMES_OPS that lets a file of src/ name ops, or None."""
    prefixes = ("/".join(path.parts[:count]) for count in range(1, len(path.parts) + 1))
    return next((prefix for prefix in prefixes if prefix in NAMES_OPS), None)


def check_op_names(root):
    """Files that name ops without an entry of NAMES_OPS. Tests may name what they like."""
    for path in sorted(p for suffix in ("h", "cpp", "inc") for p in (root / "src").rglob(f"*.{suffix}")):
        if path.stem.endswith("_test"):
            continue
        if names_ops(path.relative_to(root / "src")):
            continue
        text = path.read_text()
        for match in OP_NAME.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(root)}:{line}: names {match.group()}: ask for a fact of the op (NAMES_OPS)"


def check(root):
    """All that goes against the arrows under `root`, as lines to print."""
    return [*check_cpp(root), *check_cmake(root), *check_python(root), *check_op_names(root)]


def check_unused(root):
    """The arrows that no file under `root` follows, and the entries of NAMES_OPS that none needs."""
    used = set()
    for path in (p for suffix in ("h", "cpp", "inc", "def") for p in (root / "src").rglob(f"*.{suffix}")):
        folder = path.relative_to(root / "src").parts[0]
        used |= {(folder, included.split("/")[0]) for _, included in INCLUDE.findall(path.read_text())}
    for path in (package := root / "python" / "lowtide").rglob("*.py"):
        relative = path.relative_to(package)
        for _, name in imported_modules(path, relative.parts[:-1]):
            if name.startswith("lowtide."):
                used.add((relative.parts[0].removesuffix(".py"), name.split(".")[1]))
    naming = {
        names_ops(path.relative_to(root / "src"))
        for path in (root / "src").rglob("*")
        if path.suffix in (".h", ".cpp", ".inc") and OP_NAME.search(path.read_text())
    }
    for name in NAMES_OPS:
        if name not in naming:
            yield f"tools/check_layers.py: NAMES_OPS: no file of {name} names an op"
    for name, arrows in (("ARROWS", ARROWS), ("PYTHON_ARROWS", PYTHON_ARROWS)):
        for folder, targets in arrows.items():
            for target in targets:
                if (folder, target) not in used:
                    yield f"tools/check_layers.py: {name}: no file of {folder} uses its arrow to {target}"


if __name__ == "__main__":
    project = Path(__file__).resolve().parent.parent
    found = [*check(project), *check_unused(project)]
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))
