"""What a step costs on this machine: the file that `lowtide calibrate` writes and sessions read (src/memory/prices.h).

It lies in ORTMODULE_CACHE_DIR or, without one, in the user's cache folder; what is shipped holds where there is none.
"""

import functools
import os

from lowtide import environment
from lowtide._lowtide import tell_other_machine
from lowtide.errors import Error
from lowtide.log import logger

from . import files

_MAGIC = "prices 1"


def path():
    """Of the file, there or not."""
    folder = environment.read("ORTMODULE_CACHE_DIR") or environment.user_cache_folder()
    return os.path.join(folder, "prices.txt")


@functools.cache
def measured_prices():
    """The text, read once a process; empty where nothing was measured, or not on this machine with these threads."""
    where = path()
    if not files.is_usable(where):
        return ""
    body = files.read(where, _MAGIC)
    text = "" if body is None else body.decode(errors="replace")
    try:
        reason = tell_other_machine(text) if text else "it is damaged or holds no prices"
    except (Error, ValueError) as error:
        reason = str(error)
    if not reason:
        return text
    logger.warning("%s is ignored, steps are priced as shipped: %s. `lowtide calibrate` measures anew", where, reason)
    return ""


def write_prices(text):
    """OSError where the file cannot be written."""
    files.write(path(), _MAGIC, text.encode())
    measured_prices.cache_clear()
