"""The exceptions of lowtide. User mistakes, missing support and bugs of lowtide are different classes."""


class Error(Exception):
    """What lowtide raises on purpose."""

    guards = None  # lowtide.guards.Guards of the trace that failed, if there was one
    of_sizes_and_data = False  # whether forward asked about both at once in it
    changed = ()  # what forward itself changes in each call, where that is the reason: Changes.recurring of guards
    grown = ()  # lists that forward itself appends to
    numbers = ()  # places of numbers that forward itself changes, if nothing else: texts of guards.held
    of_data = False  # forward branches on data
    of_bounds = False  # PyTorch stumbled over the largest number that a size may be
    asks_plain = None  # (name of a Python module, "int" or "float" that its code calls) (guards/plain_numbers.py)
    assigning = frozenset()  # names of Python modules whose code calls SciPy's assignment (capture/assignments.py)
    asks_compiling = False  # forward asked whether it is compiled (guards/compiling.py)
    of_lists = False  # it asked for numbers of a tensor that it had made of numbers (guards/tables.py)
    running = ()  # submodules that were running where the trace ended, outermost first
    readers = ()  # submodules that may have read a table of sizes, outermost first
    read_strings = ()  # names of strings of any value that forward read in it


class InvalidArgument(Error, ValueError):
    """A shape, dtype, option or call that cannot be right."""


class GraphError(Error, ValueError):
    """A text or captured graph that breaks the grammar or an invariant."""


class ProgramError(Error, ValueError):
    """A saved program that is damaged or of another version."""


class UnsupportedError(Error, RuntimeError):
    """Legal in PyTorch, not (yet) in the engine: ORTModule runs PyTorch instead. Itself it is a graph that cannot be
    exported, built or planned; its subclasses name other causes."""


class UnsupportedDevice(UnsupportedError):
    """A parameter or an argument on another device than the CPU."""


class UnsupportedData(UnsupportedError):
    """An argument or an output of a type that the engine does not take."""


class UnplannedSize(UnsupportedData):
    """Data of one call that its graph excludes: a check of forward's does not hold, or a size from data is larger than
    its bound. PyTorch runs that call, and raises what forward raises."""


class UnsupportedModel(UnsupportedError):
    """What the module itself is or has registered, such as backward hooks inside."""


class BadInitialization(UnsupportedError):
    """The engine cannot start in this process, for example for an old PyTorch."""


class DifferentProcesses(Error, RuntimeError):
    """Processes that train together are not alike, in a way that PyTorch could not train either: it would hang, or add
    up gradients of different parameters. Always raised."""


class OutOfMemory(Error, MemoryError):
    """An allocation failed; the message names the largest live values."""


class EngineError(Error, RuntimeError):
    """A kernel or PyTorch refused at run time, for example an index out of range."""


class InternalError(Error, AssertionError):
    """A bug of lowtide."""

    evidence = None  # lowtide.ortmodule.bug_reports.Evidence, where more is known than the text


class FallbackWarning(UserWarning):
    """PyTorch runs a module that the engine cannot; the message has the reason."""
