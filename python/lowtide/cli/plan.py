"""`lowtide plan`: what a training step will need before its first, what a smaller budget costs, and what fits."""

import argparse
import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from lowtide.capture import parse_keep_outputs
from lowtide.errors import InvalidArgument
from lowtide.ortmodule.budget import format_bytes, parse_budget
from lowtide.ortmodule.longest import Range, bounds_of, longest, symbols_of
from lowtide.report import write_page

from .analyze import _step
from .model import BadInput, load, parse_dims, symbol_values
from .network import read_network
from .plan_tables import explanation, rungs_table, sizes_table, summary
from .ranks import parse_ranks, simulate, table

_EPILOG = """examples:
  lowtide plan my_models:gpt2                                    peak, floor and knee at the example's sizes
  lowtide plan my_models:gpt2 --budget 600MiB                    the plan that a budget gets
  lowtide plan my_models:gpt2 --budget 600MiB --dims batch=8,seq=128..2048
                                                                 the longest sequence that fits, peaks at others
  lowtide plan my_models:gpt2 --pareto --html plan.html          the frontier, as a table and with pictures
  lowtide plan my_models:gpt2 --budget 400MiB --explain gelu_3   why a value is kept or made again
  lowtide plan my_models:gpt2 --ranks 8,64,1024 --network network.json
                                                                 the step on so many processes; docs/distributed.md
"""
_MOST_ROWS = 12  # of the table of sizes


def add_to(commands):
    parser = commands.add_parser(
        "plan",
        help="memory of a training step under a budget: what fits, and what it costs",
        description=__doc__.strip(),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="module:function, or the path of a graph in text form or an .onnx file"
    )
    parser.add_argument("--loss", default="", metavar="NAME", help="of an .onnx file: the output that is the loss")
    parser.add_argument("--keep", metavar="PATHS", help='as keep_outputs, joined by commas: "loss"')
    parser.add_argument("--budget", metavar="BYTES", help='as memory_budget: 600MiB, 0.6GB, bytes, or "75%%"')
    parser.add_argument("--dims", default="", help="sizes by name, or batch= and seq=; one may be a range, 128..2048")
    parser.add_argument("--pareto", action="store_true", help="the frontier: every plan that is worth having")
    parser.add_argument("--explain", metavar="VALUE", help="what the plan does with a value, and why")
    parser.add_argument("--measure", action="store_true", help="run steps of the frontier's plans and time them")
    parser.add_argument("--html", metavar="FILE", help="one page with the arena before and after, and the frontier")
    parser.add_argument("--json", metavar="FILE", help="all of it for programs; - for standard output")
    parser.add_argument("--ranks", help="instead: a step on so many processes, 8,64,1024, under DDP, FSDP2, ZeRO-3")
    parser.add_argument("--network", metavar="FILE", help="JSON: bandwidths and latencies between those")
    parser.set_defaults(run=run)


def run(options):
    dims, ranges = parse_ranges(options.dims)
    budget = None if options.budget is None else parse_budget(options.budget, "--budget")
    network, counts = _asked_network(options, ranges)
    with _step("capturing"), contextlib.redirect_stdout(sys.stderr):
        keep = parse_keep_outputs(options.keep.split(",")) if options.keep else None
        model = load(options.model, options.loss, keep)
    if counts:
        return _tell_of_ranks(options, model, dims, counts, network, budget)
    with _step("planning"):
        session = model.plan({})
    growing = _growing(model, session, ranges)
    fixed = {name: bounds.high for name, bounds in ranges.items()}
    values = symbol_values(model, session.symbols, {**dims, **fixed})
    with _step("seeking plans"):
        frontier = json.loads(session.frontier(values))
    told = Told(model.name, dict(zip(session.symbols, values, strict=True)), frontier)
    if budget is not None:
        told.choose(budget)
    if options.measure:
        with _step("measuring"):
            told.measure(model, session, values)
    if growing:
        with _step("planning at other sizes"):
            told.grow(session, values, growing)
    if options.explain:
        told.explain(session, options.explain, values)
    if options.html:
        _write_page(options.html, told, session, values)
    if options.json:
        text = json.dumps(told.for_programs(), indent=1)
        print(text) if options.json == "-" else Path(options.json).write_text(text + "\n")
    if options.json != "-":
        print("\n".join(told.lines(options.pareto)))
    return 0


def _asked_network(options, ranges):
    """(Network, counts of processes), or (None, [])."""
    if (options.ranks is None) != (options.network is None):
        raise BadInput("--ranks and --network come together")
    if options.ranks is None:
        return None, []
    if ranges or options.pareto or options.explain or options.measure or options.html:
        raise BadInput("--ranks simulates one plan at one size; it goes with --budget, --dims, --keep and --json")
    return read_network(options.network), parse_ranks(options.ranks)


def _tell_of_ranks(options, model, dims, counts, network, budget):
    with _step("planning and simulating"):
        found = list(simulate(model, dims, counts, network, budget))
    if options.json:
        text = json.dumps({"model": model.name, "ranks": [told.for_programs() for told in found]}, indent=1)
        print(text) if options.json == "-" else Path(options.json).write_text(text + "\n")
    if options.json != "-":
        print("\n".join(table(model.name, found)))
    return 0


def parse_ranges(text):
    """({"batch": 8}, {"seq": Range(128, 2048)}) of "batch=8,seq=128..2048"."""
    fixed, ranges = [], {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        low, dots, high = (word.strip() for word in value.partition(".."))
        if not dots:
            fixed.append(part)
            continue
        if not low.isdigit() or not high.isdigit() or not 0 < int(low) < int(high):
            raise BadInput(f"--dims: '{part}' is not NAME=LOW..HIGH, as in seq=128..2048")
        ranges[name] = Range(int(low), int(high))
    if len(ranges) > 1:
        raise BadInput(f"--dims: {' and '.join(ranges)} are ranges, expected one: the other sizes stay what they are")
    return parse_dims(",".join(fixed)), ranges


@dataclass(frozen=True)
class Growing:
    """The dim of which peaks are told as a function."""

    name: str
    places: list  # among the session's sizes
    bounds: Range


def _growing(model, session, ranges):
    for name, bounds in ranges.items():
        symbols = symbols_of(name, session.symbols)
        known = bounds_of(symbols, model.ranges)
        if bounds.low < known.low or bounds.high > known.high:
            raise BadInput(
                f"--dims: {name} is {bounds.low}..{bounds.high}, the model takes {known.low} to {known.high}"
            )
        return Growing(name, [session.symbols.index(symbol) for symbol in symbols], bounds)
    return None


class Told:
    """What is told of a model; grows as more is asked."""

    def __init__(self, name, dims, frontier):
        self.name, self.dims, self.frontier = name, dims, frontier
        self.budget, self.chosen = None, None  # bytes; a place among the rungs
        self.growing, self.sizes, self.fits, self.longest = None, [], {}, None
        self.explained = None

    @property
    def rungs(self):
        return self.frontier["rungs"]

    def choose(self, budget):
        default = self.frontier["default_peak_bytes"]
        self.budget = budget.bytes or int(budget.fraction * default)
        fitting = [i for i, rung in enumerate(self.rungs) if rung["peak_bytes"] <= self.budget]
        self.chosen = min(fitting, key=lambda i: self.rungs[i]["predicted_ms"], default=None)

    def marks(self):
        """{place among the rungs: what it is called}, in words joined by commas."""
        found = {}
        for place, word in ((0, "default"), (self.frontier["knee"], "knee"), (len(self.rungs) - 1, "floor")):
            found[place] = f"{found[place]}, {word}" if place in found else word
        if self.chosen is not None:
            found[self.chosen] = f"{found[self.chosen]}, budget" if self.chosen in found else "budget"
        return dict(sorted(found.items()))

    def grow(self, session, values, growing):
        """Peaks of the marked plans at sizes of the dim, and the largest that fits each of them."""
        self.growing = growing
        count = len(self.rungs)  # of the archive at `values`; plans that are sought later come behind these

        def at(size):
            return [size if place in growing.places else value for place, value in enumerate(values)]

        def peaks(size):
            return session.plan_peaks(at(size))[:count]

        for size in _steps(growing.bounds):
            found = peaks(size)
            self.sizes.append({"size": size, "peak_bytes": {str(place): found[place] for place in self.marks()}})
        if self.budget is None:
            return
        for place in self.marks():
            low, high = growing.bounds
            if peaks(low)[place] > self.budget:
                continue
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if peaks(middle)[place] <= self.budget else (low, middle - 1)
            self.fits[place] = low
        with contextlib.suppress(InvalidArgument):  # nothing fits: the table says so
            self.longest = longest(session, self.budget, growing.places, values, growing.bounds)

    def measure(self, model, session, values):
        from .measured_steps import measure_rungs

        found = measure_rungs(model, session, self.rungs, self.frontier["knee"], values)
        for rung, milliseconds in zip(self.rungs, found, strict=True):
            rung["measured_ms"] = milliseconds

    def explain(self, session, value, values):
        self.explained = explanation(self, session, value, values)

    def shown_rung(self):
        """Of explanations and pictures: the budget's, else the knee."""
        return self.frontier["knee"] if self.chosen is None else self.chosen

    def lines(self, with_frontier):
        yield from summary(self)
        if with_frontier:
            yield from ("", *rungs_table(self))
        if self.growing:
            yield from ("", *sizes_table(self))
        if self.explained:
            yield from ("", *self.explained["lines"])

    def for_programs(self):
        told = {"model": self.name, "dims": self.dims, "budget_bytes": self.budget, "rung": self.chosen}
        told["frontier"] = self.frontier
        if self.growing:
            told["dim"] = self.growing.name
            told["peaks"] = self.sizes
            told["largest_by_rung"] = {str(place): size for place, size in self.fits.items()}
            told["longest"] = self.longest and self.longest.size
        if self.explained:
            told["explained"] = {name: part for name, part in self.explained.items() if name != "lines"}
        return told


def _steps(bounds):
    """Doubling sizes from the range's low end to its high one."""
    sizes = [bounds.low]
    while sizes[-1] * 2 < bounds.high and len(sizes) < _MOST_ROWS - 1:
        sizes.append(sizes[-1] * 2)
    return [*sizes, bounds.high]


def _write_page(path, told, session, values):
    shown, rungs = told.shown_rung(), told.rungs
    pictures = [("without a budget", session.arena_picture(values))]
    if shown:
        title = f"{told.marks()[shown]}: {format_bytes(rungs[shown]['peak_bytes'])}, "
        title += f"{rungs[shown]['extra_ms']:+.2f} ms predicted"
        pictures.append((title, session.arena_picture(values, shown)))
    sizes = ", ".join(f"{name}={size}" for name, size in told.dims.items())
    write_page(path, f"lowtide plan: {told.name} at {sizes or 'constant sizes'}", pictures, told.frontier, shown)
