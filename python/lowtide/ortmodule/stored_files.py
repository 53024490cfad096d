"""Files of ORTMODULE_CACHE_DIR: a line with what they hold and a hash of the rest; there whole or not at all."""

import hashlib
import os
import tempfile


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
    os.makedirs(folder, exist_ok=True)
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
