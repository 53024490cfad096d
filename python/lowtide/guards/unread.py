"""What stands for a string among the arguments that changes from call to call: forward may carry it, not read it."""

from lowtide.errors import UnsupportedError

_READS = (
    "__str__ __repr__ __format__ __hash__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __bool__ __len__ __iter__ "
    "__contains__ __getitem__ __add__ __radd__ __mul__ __rmul__ __mod__ __rmod__ __fspath__ __bytes__ __int__ "
    "__float__ __index__"
)


class Unread:
    """A string to isinstance; whoever asks it for more hears that a graph cannot tell."""

    __class__ = property(lambda self: str)

    def __getattr__(self, name):
        _refuse()


def _refuse(*_):
    raise UnsupportedError("forward reads a string that changes")


for _name in _READS.split():
    setattr(Unread, _name, _refuse)


def is_unread(value):
    return type(value) is Unread
