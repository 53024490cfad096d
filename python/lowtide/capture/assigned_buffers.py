"""`self.b = new` of a buffer in forward."""

from lowtide.errors import UnsupportedError
from lowtide.guards import Write


def assigned_buffers(path, module, before):
    """[(Write, `new`)] of each `self.b = new`; the old ones are put back, since the exporter itself keeps what its
    outermost module has, and no more."""
    assigned = []
    for name, old in before.items():
        new = module._buffers.get(name)
        if new is old:
            continue
        if _is_of_other_type(old, new):
            raise UnsupportedError(
                f"forward replaces the buffer '{path}.{name}' by one of another type".replace("'.", "'")
            )
        assigned.append((Write(path, name), new))
        module._buffers[name] = old
    if added := [name for name in module._buffers if name not in before]:
        raise UnsupportedError(f"forward adds the buffer '{added[0]}'")
    return assigned


def replaced_buffers(children):
    """{(id of the module, name)} of buffers in whose place there is one of another type now. `children`: [(module, its
    buffers before)]."""
    return {
        (id(module), name)
        for module, before in children
        for name, old in before.items()
        if (new := module._buffers.get(name)) is not old and _is_of_other_type(old, new)
    }


def _is_of_other_type(old, new):
    return old is None or new is None or new.shape != old.shape or new.dtype != old.dtype
