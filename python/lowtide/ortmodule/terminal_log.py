"""lowtide's loggers on standard error, for users who set up no logging of their own."""

import logging
import sys

from lowtide.log import let_through, logger

_FORMAT = "%(asctime)s %(name)s [%(levelname)s] - %(message)s"


class _Terminal(logging.Handler):
    """Silent as soon as the root logger has handlers: these get the same records."""

    def emit(self, record):
        if not logging.root.handlers:
            sys.stderr.write(self.format(record) + "\n")


def set_up(python_level):
    """For a module with this level of logging's."""
    let_through(python_level)
    if not any(isinstance(handler, _Terminal) for handler in logger.handlers):
        terminal = _Terminal()
        terminal.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(terminal)
