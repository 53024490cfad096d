"""torch.compile(model, backend="lowtide"): Dynamo finds the graphs, and guards them; lowtide runs them.

pip install makes the name known to PyTorch (an entry point of torch_dynamo_backends); the function works as well:
`torch.compile(model, backend=lowtide.compile_backend.lowtide)`.
"""

from lowtide import _lowtide
from lowtide.capture import parse_keep_outputs
from lowtide.errors import InvalidArgument
from lowtide.ortmodule import DebugOptions, LogLevel, terminal_log
from lowtide.ortmodule.budget import asked_budget
from lowtide.ortmodule.fallback import check_initialization
from lowtide.ortmodule.options import memory_options
from lowtide.ortmodule.piece import Piece
from lowtide.ortmodule.shared_room import RoomOfGraphs

# Of torch.compile's modes none changes anything: they are Inductor's.
_MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_ROOM = RoomOfGraphs()  # of those without a budget: a step may run graphs of several modules
_OPTIONS = ("memory_budget", "memory_level", "memory_config", "keep_outputs", "verify", "log_level")


def lowtide(graph_module, example_inputs, *, mode=None, options=None):
    """A backend of torch.compile: trains and infers, with free sizes where Dynamo has them.

    `options`: memory_budget and verify as ORTModule has them, of each graph; memory_level and memory_config in the
    place of ORTMODULE_MEMORY_OPT_LEVEL and ORTMODULE_MEMORY_OPT_CONFIG; keep_outputs: places among the graph's outputs;
    log_level: a LogLevel or its name. Environment variables as for ORTModule.
    InvalidArgument for other options and modes.
    """
    if mode not in _MODES:
        raise InvalidArgument(f"mode is {mode!r}, expected one of {', '.join(map(str, _MODES[1:]))}")
    options = dict(options or {})
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise InvalidArgument(f"unknown option {unknown[0]!r} of backend lowtide, expected {', '.join(_OPTIONS)}")
    check_initialization()
    _lowtide.install_torch()
    debug_options = _debug_options(options)
    terminal_log.set_up(debug_options.python_level)
    budget = asked_budget(options.get("memory_budget"))
    optimizer = {"level": options.get("memory_level"), "config": options.get("memory_config")}
    memory_options(budget, **optimizer)  # a mistake is told now, not by a step
    keep = parse_keep_outputs(options.get("keep_outputs"))
    room = _ROOM if budget is None else None
    return Piece(graph_module, debug_options, keep, budget, bool(options.get("verify", False)), room, optimizer)


def _debug_options(options):
    level = options.get("log_level", LogLevel.WARNING)
    if isinstance(level, str):
        if level.upper() not in LogLevel.__members__:
            raise InvalidArgument(f"log_level is {level!r}, expected one of {', '.join(LogLevel.__members__)}")
        level = LogLevel[level.upper()]
    return DebugOptions(level)
