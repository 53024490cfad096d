"""Files of the disk cache: a line with what they hold and a hash of the rest; there whole or not at all.

What they say decides what a model computes, so only files are read that nobody but this user can have written.
"""

import hashlib
import os
import tempfile

from lowtide import environment
from lowtide.log import logger

_OTHERS_WRITE = 0o022
_told = set()  # folders whose notice was given


def folder():
    """Of the cache; None without one, or where others own it or can put files there."""
    path = environment.read("ORTMODULE_CACHE_DIR")
    return path if path and _is_private(path, path) else None


def is_usable(path):
    """Whether there is a file, and it is this user's alone to write."""
    return os.path.exists(path) and _is_private(path, os.path.dirname(path))


def _is_private(path, folder):
    try:
        found = os.stat(path)
    except OSError:  # not there: it will be made
        return True
    if found.st_uid != os.geteuid():
        reason = f"belongs to the user {found.st_uid}, not to {os.geteuid()}"
    elif found.st_mode & _OTHERS_WRITE:
        reason = f"can be written by others (its mode is {found.st_mode & 0o777:o})"
    else:
        return True
    if folder not in _told:
        _told.add(folder)
        source = "ORTMODULE_CACHE_DIR: " if environment.read("ORTMODULE_CACHE_DIR") else ""
        logger.warning("%s%s is ignored, for it %s; so is all of that kind in %s", source, path, reason, folder)
    return False


def read(path, magic):
    """The body of a file, or None where it is none of ours, or not whole."""
    try:
        with open(path, "rb") as file:
            header, _, body = file.read().partition(b"\n")
    except OSError:
        return None
    return body if header == _header(magic, body) else None


def write(path, magic, body):
    """All of it or nothing: other processes may read and write the same file now."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_header(magic, body) + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _header(magic, body):
    return f"lowtide {magic} {hashlib.sha256(body).hexdigest()}".encode()
