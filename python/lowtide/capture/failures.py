"""Why an export failed: reasons in words, the user's line, and nothing that holds what was traced."""

import re
import sys
import traceback

from lowtide.errors import UnsupportedError


class Cause(Exception):
    """What the exporter raised, as text. Its frames would hold the trace, and with it the module."""

    def __init__(self, error):
        super().__init__()
        self._told = traceback.TracebackException.from_exception(error, lookup_lines=False)

    def __str__(self):
        return "\n" + "".join(self._told.format())


def frames_of(error):
    """Innermost first. Nobody keeps them: a frame that holds itself goes with the garbage collector only."""
    return reversed([frame for frame, _ in traceback.walk_tb(error.__traceback__)])


def clear_frames(error):
    """Frames of what was raised hold tensors of the trace."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def failure_from(error, handled=None):
    """The UnsupportedError inside of what the exporter raised, or one that tells its reason and the user's line.
    `handled`: what was being handled when the export began, such as the failure of an earlier try: no cause of this."""
    failure = _unsupported_from(error, handled)
    failure.__cause__ = Cause(error)
    return failure


def _unsupported_from(error, handled):
    cause = error
    while cause is not None and cause is not handled:
        if isinstance(cause, UnsupportedError):
            line = user_line(traceback.extract_tb(cause.__traceback__))
            text = str(cause)
            found = type(cause)(f"{text} ({line})" if line and line not in text else text)
            found.changed, found.grown, found.running = cause.changed, cause.grown, cause.running
            return found
        cause = cause.__cause__ or cause.__context__
    line = user_line(traceback.extract_tb(error.__traceback__))
    first = next((part.strip() for part in str(error).splitlines() if part.strip()), "")
    of_sizes = False
    of_data = type(error).__name__ == "GuardOnDataDependentSymNode"  # whose module is slow to import
    if of_data:
        reason = "forward branches on data or takes a size from data, which a graph does not know"
        of_sizes = re.search(r"\bs\d+\b", first) is not None
    elif replaced := _NO_PARAMETER.match(first):
        reason = f"parameter '{replaced[1]}' is a tensor that was computed, as torch.func.functional_call puts it there"
    else:
        reason = f"torch.export: {type(error).__name__}: {first}"
    made = UnsupportedError(f"{reason} ({line})" if line else reason)
    made.of_data, made.of_sizes_and_data = of_data, of_sizes
    made.of_bounds = isinstance(error, AssertionError) and "not a subset of src_bound" in first
    return made


_NO_PARAMETER = re.compile(r"State dict entry for parameter (?:module\.)?(\S+) is not an instance of")
_OURS = ("/lowtide/capture/", "/lowtide/cli/", "/lowtide/guards/", "/lowtide/ortmodule/", "/lowtide/utils/")


def user_line(frames):
    """ "model.py:41", the innermost frame outside of PyTorch, or empty."""
    for frame in reversed(frames):
        path = frame.filename.replace("\\", "/")
        if "/torch/" in path or path.startswith(("torch/", "<")) or any(part in path for part in _OURS):
            continue
        if path.endswith(".pyx"):  # of a library's C code
            continue
        if path.startswith(sys.base_prefix) and "site-packages" not in path:
            continue
        return f"{path.rsplit('/', 1)[-1]}:{frame.lineno}"
    return ""


def tells_of_free_sizes(error):
    """Whether the reason names a symbol that stands for a size, such as s77, or its class, as NumPy does."""
    return re.search(r"^torch\.export: .*\b(s\d+|SymInt)\b", str(error)) is not None


def may_be_of_ones(error, call):
    """Whether the trace of forward failed where a tensor has a size of 1, which the exporter's squeeze leaves."""
    return str(error).startswith("torch.export: ") and any(1 in size for size in call.sizes())
