"""`lowtide reproduce FOLDER`: runs again what a bug of lowtide's stopped, from the folder that the log names."""

import json
from pathlib import Path

import torch

from lowtide import environment
from lowtide._lowtide import Graph, Session, SizeFormula, install_torch
from lowtide.convergence.captured_graph import TORCH_DTYPES
from lowtide.errors import InternalError
from lowtide.ortmodule import ORTModule
from lowtide.ortmodule.bug_reports import FORMAT, Evidence, bugs_are_internal_errors, versions

from .model import BadInput, load_call

_NOT_SET_AGAIN = ("ORTMODULE_CACHE_DIR", "ORTMODULE_FALLBACK_POLICY", "ORTMODULE_SAVE_ONNX_PATH")


def add_to(commands):
    parser = commands.add_parser(
        "reproduce",
        help="show a bug of lowtide's again, from the folder that the log names",
        description="Runs again what failed and prints its error. Exit code 1 if it fails again, 0 if not. Inputs are "
        "made anew: floating-point numbers are drawn with seed 0, integers are 0.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the report")
    parser.add_argument(
        "model",
        metavar="MODULE:FUNCTION",
        nargs="?",
        help="a function that returns (model, args): where lowtide failed before it had a graph, or the graph calls "
        "custom functions",
    )
    parser.set_defaults(run=run)


def run(options):
    report, evidence = _read(Path(options.folder))
    if evidence.needs_model and not options.model:
        why = "the graph calls " + ", ".join(evidence.functions) if evidence.functions else "it failed before a graph"
        raise BadInput(f"{why}: give MODULE:FUNCTION, where the function returns (model, args)")
    for name, now in versions().items():
        if now != report["versions"].get(name):
            print(f"{name}: reported with {report['versions'].get(name)}, here {now}")
    torch.manual_seed(0)
    try:
        with bugs_are_internal_errors():
            if options.model:
                _run_model(options.model, report["environment"], evidence)
            else:
                _run_graph(evidence)
    except InternalError as error:
        same = str(error) == report["error"]
        print(f"InternalError: {error}")
        print("as reported" if same else f"reported was: {report['error']}")
        return 1
    print(f"no error; reported was: {report['error']}")
    return 0


def _read(folder):
    """(the report, Evidence)."""
    try:
        report = json.loads((folder / "report.json").read_text())
        graph = (folder / "graph.txt").read_text()
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} holds no report of a bug: {error}") from None
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise BadInput(f"{folder}/report.json is of another version of lowtide")
    session = dict(report["session"])
    if "fault" in session:
        session["fault"] = tuple(session["fault"])
    return report, Evidence(report["stage"], graph, session, report["sizes"], tuple(report["functions"]))


def _run_model(target, variables, evidence):
    model, args, kwargs = load_call(target)
    environment.set_again({name: value for name, value in variables.items() if name not in _NOT_SET_AGAIN})
    environment.set_again({"ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE"})
    output = ORTModule(model)(*args, **kwargs)
    leaves = torch.utils._pytree.tree_leaves(output)
    losses = [leaf.sum() for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if losses and evidence.stage in ("export", "backward"):
        sum(losses).backward()


def _run_graph(evidence):
    install_torch()
    graph = Graph.parse(evidence.graph)
    session = Session(graph, **evidence.session)
    if evidence.stage == "plan":
        if bugs := session.report["bugs"]:
            raise InternalError("; ".join(bugs))
        return
    types = [graph.value_type(entry["value"]) for entry in graph.inputs()]
    inputs = [_made(TORCH_DTYPES[dtype], [_size(text, evidence.sizes) for text in shape]) for dtype, shape in types]
    outputs, pending = session.forward(inputs, 0, evidence.stage == "backward")
    if evidence.stage == "backward":
        gradients = [torch.ones_like(outputs[index]) for index in session.grad_outputs]
        session.backward(pending, gradients, [inputs[index] for index in session.saved_inputs])


def _made(dtype, shape):
    return torch.randn(shape, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)


def _size(text, sizes):
    names = list(sizes)
    return text if isinstance(text, int) else SizeFormula(text, names).value([sizes[name] for name in names])
