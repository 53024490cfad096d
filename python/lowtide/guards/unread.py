"""What stands for a string of any value among the arguments: forward may carry and return it, not read it."""

from lowtide.errors import UnsupportedError

_READS = (
    "__str__ __repr__ __format__ __hash__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __bool__ __len__ __iter__ "
    "__contains__ __getitem__ __add__ __radd__ __mul__ __rmul__ __mod__ __rmod__ __fspath__ __bytes__ __int__ "
    "__float__ __index__ __reduce_ex__"
)


class Unread:
    """A string to isinstance; whoever asks it for more hears that a graph cannot tell."""

    __class__ = property(lambda self: str)

    def __init__(self, number=0):
        """`number`: its place among the call's strings of any value."""
        self.number, self.name, self.was_read = number, None, False

    def __copy__(self):
        return self

    def __deepcopy__(self, _):
        return self

    def __getattr__(self, name):
        self.refuse()

    def refuse(self, *_):
        self.was_read = True
        raise UnsupportedError("forward reads a string that changes")


for _name in _READS.split():
    setattr(Unread, _name, Unread.refuse)


def is_unread(value):
    return type(value) is Unread
