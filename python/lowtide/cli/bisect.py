"""`lowtide bisect`: the first op that the engine computes otherwise than PyTorch does, or one plan than another."""

import argparse
import json
from pathlib import Path

import torch

from lowtide.capture import Call, capture
from lowtide.convergence.bisect import bisect
from lowtide.convergence.engine_step import Example, make_session
from lowtide.convergence.plans import compare_plans
from lowtide.errors import InvalidArgument
from lowtide.utils.hooks.measure import measure

from .model import BadInput, load_call

_LEVELS = {"level1": 1, "level2": 2}
_FIELDS = ("shape", "dtype", "min", "max", "mean", "std", "nan", "inf", "negative", "positive", "zero")
_EPILOG = """examples:
  lowtide bisect my_models:gpt2                              my_models.gpt2() returns (model, args, kwargs)
  lowtide bisect my_models:gpt2 --output fault               writes fault/op.ir and fault/values.pt
  lowtide bisect my_models:gpt2 --plan "FastGelu+:1:-1"      with and without all FastGelu recomputed
  lowtide bisect my_models:gpt2 --plan level1                with and without ORTMODULE_MEMORY_OPT_LEVEL=1
"""


def add_to(commands):
    parser = commands.add_parser(
        "bisect",
        help="find the first op of a step that differs from PyTorch's, or between two plans",
        description="Runs one forward and backward in PyTorch and in the engine, compares every value and gradient, "
        "and names the first op whose error its inputs do not explain. Exit code 1 if there is one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="module:function that returns (model, args[, kwargs])")
    parser.add_argument(
        "--plan",
        metavar="PLANS",
        help="compare the engine's plan without the memory optimizer and with this: as ORTMODULE_MEMORY_OPT_CONFIG, or "
        "level1, level2; every bit has to be the same",
    )
    parser.add_argument("--output", metavar="FOLDER", help="write the op as a graph in text form, and its values")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)


def run(options):
    module, args, kwargs = load_call(options.model)
    captured = capture(module, args, kwargs)
    example = Example(module, Call(args, kwargs, module.forward), captured)
    if options.plan is not None:
        return _plans(example, options)
    if captured.imported.random:
        raise BadInput(
            f"{options.model} draws random numbers, and the engine's are not PyTorch's: set dropout to 0"
            f"{_drawing(captured)}. (--plan compares plans of the engine with dropout, too.)"
        )
    return _eager(example, options)


def _drawing(captured):
    """Where, for the message."""
    places = []
    for node in captured.graph.nodes():
        probability = next((node["attrs"][name][1] for name in ("p", "dropout_p") if name in node["attrs"]), 0)
        if probability and node["attrs"].get("train", ("bool", True))[1]:
            places.append(f"{node['target'].removeprefix('aten::').partition('.')[0]} in {node['origin']}")
    rest = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f" ({'; '.join(places[:3])}{rest})" if places else ""


# ---------------------------------------------------------------- against PyTorch


def _eager(example, options):
    result = bisect(example, make_session(example))
    told = tell(result)
    found = result.found[0] if result.found else None
    files = _write(options.output, found, result) if options.output and found and found.region else []
    print(json.dumps({**told, "written": files}, indent=1) if options.json else _text(told, files))
    return 1 if found or result.capture_differs else 0


def tell(result):
    """A Bisection as plain data."""
    told = {
        "compared": result.compared,
        "largest": result.largest,
        "module": result.capture_differs,
        "first": None,
    }
    if result.found:
        found = result.found[0]
        told["first"] = {
            "value": found.name,
            "engine_value": found.engine_name,
            "direction": found.direction,
            "error": found.error,
            "rounding": found.rounding,
            "limit": found.limit,
            "from_eager": found.eager_error,
            "calls": [{"call": call.target, "origin": call.origin} for call in found.calls],
            "eager": _statistics(found.eager),
            "engine": _statistics(found.engine),
            **_tell_region(result, found),
        }
    return told


def _tell_region(result, found):
    region = found.region
    if region is None:
        return {"op": None, "steps": [], "inputs": [], "graph": ""}
    return {
        "op": _op(region.faulty) if region.faulty else None,
        "alone": region.error if region.faulty else None,
        "all_right_alone": region.faulty is None and region.alone,
        "steps": [_op(op) for op in region.ops],
        "inputs": [{"name": name, "from_eager": _from_eager(result, name)} for name in region.inputs],
        "graph": region.graph.text(),
    }


def _op(op):
    return {"op": op.op, "origin": op.origin, "outputs": op.outputs}


def _place(told):
    """ "gradient of: h.7.mlp.act activations.py:66"; nothing in front where the line is not in a module."""
    return " ".join(told["origin"].split())


def _from_eager(result, name):
    """The error of an input of a region; None where PyTorch has no such value."""
    if name in result.step.given:
        return 0.0
    return result.error_from_eager(name)


def _statistics(tensor):
    summary = measure(tensor)
    return {name: getattr(summary, name) for name in _FIELDS}


def _text(told, files):
    compared, largest, first = told["compared"], told["largest"], told["first"]
    lines = [f"{compared['forward']} values and {compared['backward']} gradients compared with PyTorch's"]
    if told["module"]:
        lines.append(f"the captured graph is not the module: {told['module']} differs in PyTorch itself")
    if first is None:
        worst = max(largest.values())
        if not told["module"]:
            lines.append(f"no op errs: on its own inputs each is at most {worst:.1e} off, which is rounding")
        return "\n".join(lines)
    lines += _headline(first)
    lines += ["", *_table(first, ("eager", "engine"), ("PyTorch", "engine"))]
    lines += [f"  difference from a run in PyTorch: {first['from_eager']:.1e}", "", *_inputs(first)]
    if first["graph"]:
        lines += ["", "a graph that reproduces it:" if not files else f"written: {', '.join(files)}"]
        lines += [] if files else [first["graph"].rstrip()]
    return "\n".join(lines)


def _headline(first):
    op, direction = first["op"], first["direction"]
    what = first["value"] if direction == "forward" else f"the gradient of {first['value']}"
    if op is None and len(first["steps"]) == 1:
        (op,) = first["steps"]
    if op:
        yield f"first op that errs: {direction}, {op['op']}, {_place(op)}"
    else:
        yield f"first value that is wrong: {direction}, {what}"
    verb = "makes" if op and first["engine_value"] in op["outputs"] else "seen in"
    yield f"  {verb} {what}, which is {first['error']:.1e} of its largest element off"
    yield f"  rounding would be up to {first['limit']:.0e}; PyTorch's own is {first['rounding']:.1e}"
    if first["op"]:
        yield f"  alone, on the same inputs, it is {first['alone']:.1e} off its reference kernel in float64"
    elif first["steps"]:
        if first["all_right_alone"]:
            yield "  each step is right by itself: the graph is wrong (a lowering, a fusion or a gradient rule)"
        yield from (f"  step: {step['op']}, {_place(step)}" for step in first["steps"])
    for call in first["calls"]:
        yield f"  in the model: {call['call'].removesuffix('.default')}, {_place(call)}"


def _table(first, sides, titles):
    """The statistics of two tensors side by side."""
    yield f"  {'':10}" + "".join(f"{title:>26}" for title in titles)
    for name in _FIELDS:
        cells = "".join(f"{_shown(first[side][name]):>26}" for side in sides)
        yield f"  {name:10}{cells}"


def _shown(cell):
    return f"{cell:.9g}" if isinstance(cell, float) else str(list(cell) if isinstance(cell, tuple) else cell)


def _inputs(first):
    if not first["inputs"]:
        return
    yield "  differences of what goes in:"
    for entry in first["inputs"]:
        error = entry["from_eager"]
        yield f"    {entry['name']}: {'PyTorch has no such value' if error is None else f'{error:.1e}'}"


def _write(folder, found, result):
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "op.ir").write_text(found.region.graph.text())
        step = result.step
        names = [*found.region.inputs, *(name for op in found.region.ops for name in op.outputs)]
        tensors = {name: step.values.get(name, step.given.get(name)) for name in names}
        torch.save({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "values.pt")
    except OSError as error:
        raise InvalidArgument(f"--output: cannot write to {folder}: {error.strerror or error}") from None
    return [str(folder / "op.ir"), str(folder / "values.pt")]


# ---------------------------------------------------------------- two plans


def _plans(example, options):
    if options.plan in _LEVELS:
        memory = {"memory_level": _LEVELS[options.plan]}
    else:
        memory = {"memory_config": options.plan}
    key = int(torch.empty((), dtype=torch.int64).random_())
    result = compare_plans(example, memory, key)
    parted = result.parted
    told = {
        "compared": result.compared,
        "again": result.again,
        "gradients": result.gradients,
        "notices": result.notices,
        "first": None,
    }
    if parted:
        told["first"] = {
            "value": parted.name,
            "direction": parted.direction,
            **_op(parted.op),
            "without": _statistics(parted.first),
            "with": _statistics(parted.second),
        }
    print(json.dumps(told, indent=1) if options.json else _plan_text(told))
    return 1 if parted else 0


def _plan_text(told):
    first = told["first"]
    lines = [f"notice: {notice}" for notice in told["notices"]]
    lines.append(
        f"{told['compared']} values compared, {told['again']} of them made a second time, "
        f"and {told['gradients']} gradients of inputs"
    )
    if first is None:
        return "\n".join([*lines, "equal in every bit"])
    lines.append(f"first value that differs: {first['direction']}, {first['value']}")
    lines.append(f"  made by {first['op']}, {_place(first)}")
    return "\n".join([*lines, *_table(first, ("without", "with"), ("without", "with the plan"))])
