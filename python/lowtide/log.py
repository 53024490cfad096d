"""Who hears what: the loggers "lowtide" (about a model) and "lowtide.engine" (about graphs, plans and kernels).

Each wrapped module has a level of its own, and its calls run under it: `with at(level): …`.

    level          lowtide   lowtide.engine   ranks   torch.export's own log   exported graph
    FATAL…WARNING  as it is  as it is         first   hidden                   –
    INFO           INFO      WARNING          first   hidden                   shown
    DEVINFO        INFO      INFO             all     shown                    shown
    VERBOSE        DEBUG     DEBUG            all     shown                    shown

Records that no call makes pass from WARNING on, or from the level that a user gave the logger. Nothing here, or
anywhere in lowtide, redirects a stream: what C++ or a debugger writes reaches the terminal.
"""

import contextvars
import enum
import logging
import os

import torch

logger = logging.getLogger("lowtide")
engine = logging.getLogger("lowtide.engine")
_current = contextvars.ContextVar("level", default=None)


class LogLevel(enum.IntEnum):
    VERBOSE = 0
    DEVINFO = 1
    INFO = 2
    WARNING = 3
    ERROR = 4
    FATAL = 5


# of a level: the lowest records of "lowtide" and of "lowtide.engine"
_LOWEST = {
    LogLevel.VERBOSE: (logging.DEBUG, logging.DEBUG),
    LogLevel.DEVINFO: (logging.INFO, logging.INFO),
    LogLevel.INFO: (logging.INFO, logging.WARNING),
    LogLevel.WARNING: (logging.WARNING, logging.WARNING),
    LogLevel.ERROR: (logging.ERROR, logging.ERROR),
    LogLevel.FATAL: (logging.CRITICAL, logging.CRITICAL),
}


def python_level(level):
    return _LOWEST[level][0]


class at:
    """The level of what runs inside."""

    __slots__ = ("_level", "_token")

    def __init__(self, level):
        self._level = level

    def __enter__(self):
        self._token = _current.set(self._level)

    def __exit__(self, *_):
        _current.reset(self._token)


def exporter_is_heard():
    """Whether PyTorch's own log and warnings about an export are shown."""
    level = _current.get()
    return level is not None and level < LogLevel.INFO


class _LevelOfTheCall(logging.Filter):
    """One for each logger."""

    def __init__(self, owner, parent=None):
        super().__init__()
        self._owner, self._parent = owner, parent
        self._ours = self._users = logging.NOTSET  # levels that we gave the logger, and that ours took the place of

    def filter(self, record):
        level = _current.get()
        lowest = self._of_user() if level is None else logging.NOTSET
        if lowest == logging.NOTSET:
            lowest = _LOWEST[LogLevel.WARNING if level is None else level][self._owner is engine]
        if record.levelno < lowest:
            return False
        rank, ranks = rank_of_process()
        if level is not None and level >= LogLevel.INFO and rank > 0 and record.levelno < logging.ERROR:
            return False  # a bug of ours may show on one rank alone
        if ranks > 1:
            record.name = f"{record.name}.rank-{rank}"
        return True

    def let_through(self, python_level):
        """The logger makes records from this level on at least."""
        level = self._owner.level
        if level == logging.NOTSET or level > python_level:
            self._users = self._of_user()
            self._owner.setLevel(python_level)
            self._ours = python_level

    def _of_user(self):
        """The level that a user gave the logger, if any."""
        level = self._owner.level
        level = self._users if level == self._ours else level
        return level or (self._parent._of_user() if self._parent is not None else logging.NOTSET)


def let_through(python_level):
    """The logger lets through what the most talkative module asks for; each module's level is held against its calls'
    records."""
    _of_logger.let_through(python_level)


def rank_of_process():
    """(rank, how many there are)."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def is_first_rank():
    """Whether this process tells users what all of its kind would tell them."""
    return rank_of_process()[0] == 0


def _number(variable, default):
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default


_of_logger = _LevelOfTheCall(logger)
logger.addFilter(_of_logger)
engine.addFilter(_LevelOfTheCall(engine, _of_logger))
