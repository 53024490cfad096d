"""tools/check_layers.py: what it lets pass and what it names."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("check_layers", ROOT / "tools" / "check_layers.py")
check_layers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_layers)


def found(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return check_layers.check(root)


@pytest.mark.parametrize(
    "path, include",
    [
        ("src/ir/graph.h", "base/ids.h"),  # an arrow carries on: ir -> opset -> base
        ("src/ir/graph_test.cpp", "ir/graph.h"),
        ("src/emit/choose.cpp", "kernels/kernel.h"),
        ("src/memory/stash.cpp", "passes/cse.h"),
        ("src/memory/stash.cpp", "program/program.h"),
        ("src/runtime/executor.cpp", "kernels/cpu/softmax.h"),
        ("src/session/session.cpp", "lowtide/session.h"),
    ],
)
def test_allowed_include(tmp_path, path, include):
    assert found(tmp_path, path, f'#include "{include}"\n') == []


@pytest.mark.parametrize(
    "path, include",
    [
        ("src/base/check.cpp", "ir/graph.h"),
        ("src/kernels/cpu/add.cpp", "ir/graph.h"),
        ("src/kernels/cpu/add.cpp", "symbolic/dim.h"),
        ("src/emit/choose.cpp", "kernels/cpu/dense.h"),  # kernel.h only
        ("src/emit/choose.cpp", "kernels/cpu/norms/list.inc"),
        ("src/runtime/executor.cpp", "emit/schedule.h"),
        ("src/runtime/executor_test.cpp", "ops/infer.h"),
        ("src/passes/cse.cpp", "grad/build.h"),
        ("src/program/save.cpp", "runtime/arena.h"),
        ("src/ir/graph.cpp", "graph.h"),
        ("src/ir/graph.cpp", "lowtide/graph.h"),
        ("include/lowtide/graph.h", "ir/graph.h"),
    ],
)
def test_refused_include(tmp_path, path, include):
    lines = found(tmp_path, path, f'#pragma once\n#include "{include}"\n')
    assert len(lines) == 1 and path in lines[0] and include in lines[0]


def test_python_headers_stay_in_the_bindings(tmp_path):
    assert len(found(tmp_path, "src/runtime/executor.cpp", "#include <nanobind/nanobind.h>\n")) == 1
    assert len(found(tmp_path, "python/bindings/graph.cpp", "#include <nanobind/nanobind.h>\n")) == 1


def test_a_new_folder_needs_arrows(tmp_path):
    lines = found(tmp_path, "src/stuff/a.cpp", '#include "base/ids.h"\n')
    assert len(lines) == 1 and "stuff" in lines[0]


def test_cmake_dependency(tmp_path):
    assert found(tmp_path, "src/grad/CMakeLists.txt", "lowtide_library(grad SOURCES build.cpp DEPENDS ops)\n") == []
    lines = found(tmp_path, "src/grad/CMakeLists.txt", "lowtide_library(grad SOURCES build.cpp DEPENDS ops emit)\n")
    assert len(lines) == 1 and "emit" in lines[0]


@pytest.mark.parametrize(
    "path, line, good",
    [
        ("ortmodule/manager.py", "from lowtide.capture import capture", True),
        ("ortmodule/manager.py", "from ..capture import capture", True),
        ("ortmodule/manager.py", "from .options import DebugOptions", True),
        ("capture.py", "import torch", True),
        ("onnx_io.py", "import onnx", True),
        ("capture.py", "from lowtide.ortmodule import ORTModule", False),
        ("capture.py", "from .ortmodule import ORTModule", False),
        ("capture.py", "from lowtide import ortmodule", False),
        ("utils/hooks/statistics.py", "from ...ortmodule import ORTModule", False),
        ("capture.py", "import onnx", False),
        ("ortmodule/manager.py", "from transformers import GPT2Config", False),
        ("stuff.py", "import torch", False),
    ],
)
def test_python_import(tmp_path, path, line, good):
    assert len(found(tmp_path, f"python/lowtide/{path}", line + "\n")) == (0 if good else 1)


def test_this_repository():
    assert check_layers.check(ROOT) == []


def test_an_arrow_that_no_file_uses(tmp_path):
    found(tmp_path, "src/ir/graph.cpp", '#include "opset/op.h"\n')
    found(tmp_path, "python/lowtide/capture/export.py", "from lowtide.errors import Error\nfrom ..log import logger\n")
    unused = list(check_layers.check_unused(tmp_path))
    assert "tools/check_layers.py: ARROWS: no file of ir uses its arrow to symbolic" in unused
    assert not any("of ir uses its arrow to opset" in line for line in unused)
    assert "tools/check_layers.py: PYTHON_ARROWS: no file of capture uses its arrow to guards" in unused
    assert not any(
        "of capture uses its arrow to errors" in line or "of capture uses its arrow to log" in line for line in unused
    )


@pytest.mark.parametrize(
    "path, good",
    [
        ("src/passes/cse.cpp", False),
        ("src/memory/stash.cpp", False),
        ("src/ops/gemm.cpp", True),
        ("src/passes/fuse_matmul.cpp", True),
        ("src/passes/cse_test.cpp", True),
    ],
)
def test_a_file_that_names_an_op(tmp_path, path, good):
    lines = found(tmp_path, path, "bool is_product(Op op) {\n  return op == Op::kMatMul;\n}\n")
    assert [line.split(": ask")[0] for line in lines] == ([] if good else [f"{path}:2: names Op::kMatMul"])


def test_a_file_that_may_name_ops_and_names_none(tmp_path):
    found(tmp_path, "src/passes/fuse_matmul.cpp", "Op::kFusedMatMul\n")
    unused = list(check_layers.check_unused(tmp_path))
    assert "tools/check_layers.py: NAMES_OPS: no file of passes/fuse_gelu.cpp names an op" in unused
    assert not any("passes/fuse_matmul.cpp" in line for line in unused)
