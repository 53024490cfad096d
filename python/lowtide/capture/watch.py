"""What torch.export does not see while it traces: Python state and hooks on gradients. Watched, restored, refused."""

import collections
import contextlib
import random
import sys
import threading
import types
import weakref
from dataclasses import dataclass, field

import torch

from lowtide.errors import UnsupportedError, UnsupportedModel

from .call import PLAIN

_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (list, tuple, set, frozenset, dict, collections.deque)
_LARGEST = 4096  # elements of a container that are compared one by one


def refuse_backward_hooks(module):
    """Module-level backward hooks do not survive an export: their gradients would be silently other ones."""
    for path, child in module.named_modules():
        if child._backward_hooks or child._backward_pre_hooks:
            raise UnsupportedModel(f"module '{path}' ({type(child).__name__}) has a backward hook")
    global_hooks = torch.nn.modules.module
    if global_hooks._global_backward_hooks or global_hooks._global_backward_pre_hooks:
        raise UnsupportedModel("a global module backward hook is registered")


@contextlib.contextmanager
def tensor_hooks_refused():
    """While tracing, a hook on a tensor would be lost without a word."""

    tracing = threading.get_ident()

    def refuse(name, original):
        def method(*args, **kwargs):
            if threading.get_ident() != tracing:
                return original(*args, **kwargs)
            raise UnsupportedError(f"forward calls Tensor.{name}")

        return method

    names = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")
    # A name that torch.Tensor only inherits is deleted again, not copied down.
    saved = {name: torch.Tensor.__dict__.get(name) for name in names}
    for name in names:
        setattr(torch.Tensor, name, refuse(name, getattr(torch.Tensor, name)))
    try:
        yield
    finally:
        for name, method in saved.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)


def picture(value, depth=3):
    """Equal pictures: nothing that Python code could count or remember has changed."""
    if isinstance(value, PLAIN):
        return type(value), repr(value)
    if isinstance(value, weakref.ref):
        value = value()
    if isinstance(value, torch.nn.Parameter):
        return "parameter"  # the exporter puts fake ones in the places of parameters, in nn.LSTM's own list too
    if isinstance(value, _CONTAINERS) and depth and len(value) <= _LARGEST:
        if isinstance(value, dict):
            return [(picture(key, depth - 1), picture(item, depth - 1)) for key, item in value.items()]
        return type(value), [picture(item, depth - 1) for item in value]
    return type(value), id(value)


def _same_tensor(tensor):
    return tensor


def saved_tensors_hooks_masked():
    """A context in which hooks of the user's on saved tensors (save_on_cpu, a checkpoint around the call) see nothing:
    a checkpoint counts what is saved, and an export saves more than the same call does later."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_same_tensor, _same_tensor)


class ModuleState:
    """The Python attributes of a module and its children, compared and put back."""

    def __init__(self, module):
        self._modules = list(module.named_modules())
        self._saved = [
            (
                {name: (value, copied(value), picture(value)) for name, value in vars(child).items()},
                {table: dict(getattr(child, table)) for table in _MODULE_TABLES},
            )
            for _, child in self._modules
        ]

    def changed(self):
        """ "name of attribute" of the first change, or None. Buffers are the exporter's business."""
        for (path, child), (attributes, tables) in zip(self._modules, self._saved, strict=True):
            now = vars(child)
            for name in list(attributes) + [name for name in now if name not in attributes]:
                if name in _MODULE_TABLES:
                    continue
                if name not in now or name not in attributes or picture(now[name]) != attributes[name][2]:
                    return f"{path}.{name}" if path else name
            if list(child._modules) != list(tables["_modules"]):
                return f"{path}.{next(iter(set(child._modules) ^ set(tables['_modules'])))}".lstrip(".")
        return None

    def restore(self):
        for (_, child), (attributes, tables) in zip(self._modules, self._saved, strict=True):
            for table in _MODULE_TABLES:
                current = getattr(child, table)
                if list(current.items()) != list(tables[table].items()):
                    current.clear()
                    current.update(tables[table])
            now = vars(child)
            for name in [name for name in now if name not in attributes]:
                del now[name]
            for name, (value, copy, seen) in attributes.items():
                if name in _MODULE_TABLES:
                    continue
                if picture(now.get(name)) != seen or now.get(name) is not value:
                    now[name] = put_back(value, copy)


def copied(value):
    return type(value)(value) if type(value) in (list, dict, set, collections.deque) else None


def put_back(value, copy):
    """The object itself, with the elements that it had."""
    if copy is not None and value != copy:
        value.clear()
        (value.extend if isinstance(value, list | collections.deque) else value.update)(copy)
    return value


def _random_states():
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def _same(first, second):
    python, legacy = first
    return python == second[0] and (
        legacy is None or (legacy[2:] == second[1][2:] and bool((legacy[1] == second[1][1]).all()))
    )


def call_watched(function, *args, **kwargs):
    """Calls the module; UnsupportedError if it drew random numbers of Python or NumPy, which tracing would freeze."""
    before = _random_states()
    with _numpy_generators_refused():
        result = function(*args, **kwargs)
    if not _same(before, _random_states()):
        raise UnsupportedError("forward draws from Python's or NumPy's random numbers")
    return result


@contextlib.contextmanager
def _numpy_generators_refused():
    numpy = sys.modules.get("numpy")
    if numpy is None:
        yield
        return
    saved = numpy.random.default_rng

    def refuse(*args, **kwargs):
        raise UnsupportedError("forward makes a NumPy random generator")

    numpy.random.default_rng = refuse
    try:
        yield
    finally:
        numpy.random.default_rng = saved


@contextlib.contextmanager
def random_states_kept():
    """Whatever runs inside leaves the generators of Python, NumPy and PyTorch as they were."""
    states, torch_state = _random_states(), torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(states[0])
        if states[1] is not None:
            sys.modules["numpy"].random.set_state(states[1])


@dataclass
class Reads:
    """What forward read of the Python objects around it, while it was traced."""

    # (id of the owner, name) → owner: a module, or an object that a module holds, a config for example. Of names in
    # the owner's __dict__, and of names looked for in vain.
    attributes: dict = field(default_factory=dict)
    computed: dict = field(default_factory=dict)  # the same of names that the owner's class answers
    requires_grad: bool = False  # code outside of PyTorch's own machinery asked some tensor


# Of nn.Module itself: the tables, watched as such, and what no forward asks for.
_OF_EVERY_MODULE = frozenset((*vars(torch.nn.Module()), *vars(torch.nn.Module))) - {"training", "forward"}
_CODE = (types.ModuleType, type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_NO_OBJECTS = (*PLAIN, *_CONTAINERS, *_CODE, torch.nn.Module, torch.Tensor)


@contextlib.contextmanager
def attribute_reads(watched):
    """Yields Reads of a module's parts, filled while it is active."""
    reads, tracing, patched = Reads(), threading.get_ident(), {}
    parts = {id(child) for child in watched.modules()}

    def note(owner, name, value):
        attributes = object.__getattribute__(owner, "__dict__")
        if name in attributes or (callable(value) and isinstance(owner, torch.nn.Module)):
            reads.attributes[id(owner), name] = owner  # a method, too, may be set on the module
        elif isinstance(value, PLAIN) and not hasattr(_of_class(owner, name), "__get__"):
            reads.computed[id(owner), name] = owner  # what a property reads is noted by itself
        follow(value)

    def record(module, name):
        if name in _OF_EVERY_MODULE or name[:2] == "__" or id(module) not in parts or threading.get_ident() != tracing:
            return object.__getattribute__(module, name)
        try:
            value = object.__getattribute__(module, name)
        except AttributeError:
            if not any(name in vars(module).get(table, ()) for table in _MODULE_TABLES):
                reads.attributes[id(module), name] = module
            raise
        note(module, name, value)
        return value

    def follow(value):
        """Reads of the attributes of an object that a module holds are noted too."""
        cls = type(value)
        is_object = hasattr(value, "__dict__") and cls.__module__.partition(".")[0] not in ("torch", "builtins")
        if (
            cls in patched
            or not is_object
            or isinstance(value, (*PLAIN, *_CONTAINERS, *_CODE, torch.nn.Module, torch.Tensor))
        ):
            return
        original = cls.__getattribute__

        def record_of_object(owner, name):
            found = original(owner, name)
            if name[:2] != "__" and threading.get_ident() == tracing and type(owner) is cls:
                note(owner, name, found)
            return found

        own = vars(cls).get("__getattribute__")
        try:
            cls.__getattribute__ = record_of_object
        except TypeError:
            return  # a class of C code
        patched[cls] = own

    def requires_grad(tensor):
        if threading.get_ident() == tracing and _is_users(sys._getframe(1)):
            reads.requires_grad = True
        return original_property.__get__(tensor)

    original_property = torch.Tensor.requires_grad
    torch.Tensor.requires_grad = property(requires_grad, original_property.__set__)
    torch.nn.Module.__getattribute__ = record
    try:
        yield reads
    finally:
        del torch.nn.Module.__getattribute__
        del torch.Tensor.requires_grad
        for cls, own in patched.items():
            if own is None:
                del cls.__getattribute__
            else:
                cls.__getattribute__ = own


def _of_class(owner, name):
    return next((vars(cls)[name] for cls in type(owner).__mro__ if name in vars(cls)), None)


def _is_users(frame):
    """Code of users and of PyTorch's layers: torch.nn.MultiheadAttention takes another way for frozen tensors."""
    name = frame.f_globals.get("__name__", "")
    in_layers = name.startswith(("torch.nn.modules.", "torch.nn.functional"))
    return in_layers or name.partition(".")[0] not in ("torch", "lowtide")
