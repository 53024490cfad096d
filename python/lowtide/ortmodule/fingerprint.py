"""What a captured graph depends on, as one hash: the model's code and configuration, not the values of its parameters.

Code of installed packages counts by version and file; the user's own by its bytecode, followed through the globals,
closures and defaults that it reads. Whatever this module does not know makes a model one that cannot be cached.
"""

import collections
import enum
import functools
import hashlib
import importlib.metadata
import logging
import re
import sys
import sysconfig
import threading
import types
import weakref
from pathlib import Path, PurePath

import torch

from lowtide import _lowtide

_LITERAL = (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type(NotImplemented))
_BY_TEXT = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, re.Pattern, PurePath)
_BY_CLASS = (logging.Logger, type(threading.Lock()), type(threading.RLock()), torch.utils.hooks.RemovableHandle)
_CALLABLE_WRAPPERS = (staticmethod, classmethod)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
# Of nn.Module itself: tables, which are told in their own way, and what has no say in forward.
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}
_SKIPPED_OF_CLASS = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __annotations__ __annotate__ __firstlineno__ __static_attributes__ "
    "__parameters__ __orig_bases__ __abstractmethods__ _abc_impl __dataclass_fields__ __dataclass_params__ "
    "__match_args__ __slotnames__".split()
)
_MOST_OBJECTS = 1_000_000


class NotCacheable(Exception):
    """With the reason."""


def fingerprint(module, *surroundings):
    """A hash of the module and of what else is given: plain values, dtypes, containers of these."""
    encoder = _Encoder(module)
    encoder.add(build(), "lowtide")
    encoder.add(surroundings, "the call")
    encoder.hooks(torch.nn.modules.module, "_global", "every module")
    encoder.module(module)
    return encoder.digest()


def code_digest(thing):
    """A hash of a class, or of an op that torch.library.custom_op made: its code and what that reads."""
    encoder = _Encoder(torch.nn.Module())
    if isinstance(thing, torch._ops.OpOverload):
        encoder.op(thing)
    else:
        encoder.add(thing, thing.__qualname__)
    return encoder.digest()


@functools.cache
def build():
    """Of lowtide, PyTorch and Python, and what this machine's kernels are chosen by."""
    files = [Path(_lowtide.__file__), *sorted((Path(__file__).parents[1] / "capture").glob("*.py"))]
    digests = [_file_digest(str(path)) for path in [*files, Path(__file__), Path(__file__).with_name("cache.py")]]
    isa = torch.backends.cpu.get_cpu_capability()
    return (*digests, str(torch.__version__), sys.version, isa)


@functools.cache
def _file_digest(path):
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


@functools.cache
def _installed(name):
    """Whether a module came with Python or from a package index: its code does not change under its version."""
    if name.partition(".")[0] == "lowtide":  # in build()
        return True
    module = sys.modules.get(name) or sys.modules.get(name.partition(".")[0])
    path = getattr(module, "__file__", None)
    if path is None:
        return name in sys.builtin_module_names or name.partition(".")[0] in sys.stdlib_module_names
    path = str(Path(path).resolve())
    if "site-packages" in path or "dist-packages" in path:
        return True
    paths = sysconfig.get_paths()
    return any(path.startswith(str(Path(paths[key]).resolve())) for key in ("stdlib", "platstdlib"))


@functools.cache
def _version(name):
    top = name.partition(".")[0]
    if version := getattr(sys.modules.get(top), "__version__", ""):
        return str(version)
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return ""


class _Encoder:
    def __init__(self, module):
        self._hash = hashlib.sha256()
        self._paths = {id(child): path for path, child in module.named_modules()}
        self._classes = set()
        self._seen = {}  # id → number
        self._kept = []  # what has an entry in _seen: ids stay theirs

    def digest(self):
        return self._hash.hexdigest()

    def _emit(self, *words):
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode(errors="surrogatepass")
            self._hash.update(len(data).to_bytes(8, "little") + data)

    # ---- modules

    def module(self, module):
        for path, child in module.named_modules():
            self._emit("module", path)
            self._class(type(child), path)
            for name, tensor in child._parameters.items():
                self._tensor_type("parameter", name, tensor)
            for name, tensor in child._buffers.items():
                self._tensor_type("buffer", name, tensor)
            for name, grandchild in child._modules.items():
                self._emit("child", name, self._paths.get(id(grandchild), ""))
            self.hooks(child, "", f"module '{path}'")
            attributes = vars(child)
            for name in sorted(attributes):
                if name not in _OF_EVERY_MODULE:
                    self._emit("attribute", name)
                    self.add(attributes[name], f"attribute '{path}.{name}'".replace("'.", "'"))

    def hooks(self, owner, prefix, whose):
        """In their order; their keys are numbers that a process counts."""
        for table in _HOOKS:
            for number, hook in getattr(owner, prefix + table).items():
                self._emit(table, *(number in getattr(owner, prefix + flags, ()) for flags in _HOOK_FLAGS))
                self.add(hook, f"a hook of {whose}")

    def _tensor_type(self, kind, name, tensor):
        if tensor is None:
            self._emit(kind, name, "none")
            return
        same = self._seen.get(id(tensor))
        self._remember(tensor)
        self._emit(kind, name, type(tensor).__qualname__, tensor.dtype, tuple(tensor.shape), tensor.stride())
        self._emit(tensor.requires_grad, same)

    def _remember(self, value):
        if len(self._seen) > _MOST_OBJECTS:
            raise NotCacheable("the model's attributes hold too many objects")
        self._seen.setdefault(id(value), len(self._seen))
        self._kept.append(value)

    # ---- values

    def add(self, value, where):
        """`where`: in words, for the reason of a NotCacheable."""
        if isinstance(value, enum.Enum):
            self._emit("enum", type(value).__qualname__, value.name)
        elif type(value) in _LITERAL:
            self._emit(type(value).__name__, repr(value))
        elif isinstance(value, bool | int | float | str | bytes):  # of a class of its own
            self._emit(
                type(value).__qualname__, next(kind for kind in _LITERAL if isinstance(value, kind)).__repr__(value)
            )
        elif isinstance(value, _BY_TEXT):
            self._emit(type(value).__name__, repr(value))
        elif isinstance(value, _BY_CLASS):
            self._emit(type(value).__name__)
        elif id(value) in self._seen:
            self._emit("again", self._seen[id(value)])
        else:
            self._remember(value)
            self._object(value, where)

    def _object(self, value, where):
        if isinstance(value, torch.nn.Module):
            if id(value) not in self._paths:
                raise NotCacheable(f"{where} holds a module that is no submodule")
            self._emit("submodule", self._paths[id(value)])
        elif isinstance(value, torch.Tensor):
            self._tensor(value, where)
        elif isinstance(value, type):
            self._class(value, where)
        elif isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, types.ModuleType):
            self._emit("import", value.__name__, "" if _installed(value.__name__) else _module_digest(value))
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif not self._container(value, where) and not self._callable(value, where):
            self._instance(value, where)

    def _container(self, value, where):
        kind = type(value)
        if isinstance(value, dict | types.MappingProxyType):
            self._emit(kind.__qualname__, len(value))
            for key, item in value.items():
                self.add(key, where)
                self.add(item, where)
        elif isinstance(value, list | tuple | collections.deque):
            self._emit(kind.__qualname__, len(value))
            for item in value:
                self.add(item, where)
        elif isinstance(value, set | frozenset):
            self._emit(kind.__qualname__, len(value), *sorted(self._alone(item, where) for item in value))
        else:
            return False
        if kind.__module__ not in ("builtins", "collections", "types"):
            self._class(kind, where)
            self.add(vars(value) if hasattr(value, "__dict__") else None, where)
        return True

    def _alone(self, value, where):
        """The digest of an element, whose place among the others is chance."""
        if not isinstance(value, (*_LITERAL, *_BY_TEXT, enum.Enum)):
            raise NotCacheable(f"{where} holds a set of {type(value).__qualname__}")
        return f"{type(value).__qualname__} {value!r}"

    def _callable(self, value, where):
        if isinstance(value, types.MethodType):
            self._emit("method")
            self.add(value.__self__, where)
            self.add(value.__func__, where)
        elif isinstance(value, functools.partial):
            self._emit("partial")
            self.add((value.func, value.args, value.keywords), where)
        elif isinstance(value, _CALLABLE_WRAPPERS):
            self._emit(type(value).__name__)
            self.add(value.__func__, where)
        elif isinstance(value, property | functools.cached_property):
            parts = (value.fget, value.fset) if isinstance(value, property) else (value.func,)
            self._emit(type(value).__name__)
            self.add(parts, where)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
            self._emit("builtin", getattr(value, "__module__", ""), value.__qualname__)
        elif isinstance(value, weakref.ref):
            self._emit("reference")
            self.add(value(), where)
        elif isinstance(value, torch._library.custom_ops.CustomOpDef):
            self._custom_op(value)
        elif type(value).__module__.startswith("torch._ops"):
            self._emit("op", str(value))
        elif isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
            self._emit("slot", value.__name__)
        else:
            return False
        return True

    def _instance(self, value, where):
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
            if value.dtype.hasobject:
                raise NotCacheable(f"{where} is an array of objects")
            self._emit("array", value.dtype.str, value.shape, value.tobytes())
            return
        names = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ()) if name != "__dict__"]
        if not hasattr(value, "__dict__") and not names:
            self._reduced(value, where)
            return
        self._emit("instance")
        self._class(type(value), where)
        for name, item in sorted(getattr(value, "__dict__", {}).items()):
            if not name.endswith("_hash"):  # another one in each process: Python salts the hashes of strings
                self._emit(name)
                self.add(item, where)
        for name in names:
            self._emit(name)
            self.add(getattr(value, name, None), where)

    def _reduced(self, value, where):
        """An object of C code: what pickle would keep of it."""
        try:
            parts = value.__reduce_ex__(2)
        except Exception:
            raise NotCacheable(f"{where} is a {type(value).__module__}.{type(value).__qualname__}") from None
        self._emit("object", type(value).__qualname__)
        self.add(parts, where)

    def _tensor(self, tensor, where):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or tensor.layout != torch.strided:
            raise NotCacheable(f"{where} is a {type(tensor).__qualname__}")
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
        self._emit("tensor", tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
        self._emit(flat.numpy().tobytes())

    # ---- code

    def op(self, overload):
        name = overload._schema.name
        definition = getattr(torch._library.custom_ops, "OPDEFS", {}).get(name)
        if definition is None:
            raise NotCacheable(f"forward calls {name}, which is no torch.library.custom_op: its code cannot be seen")
        self._custom_op(definition)

    def _custom_op(self, definition):
        self._emit("custom op", definition._qualname, definition._schema)
        for part in ("_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn", "_backend_fns"):
            self.add(getattr(definition, part, None), f"{part} of {definition._qualname}")

    def _class(self, cls, where):
        self._emit("class", cls.__module__, cls.__qualname__)
        if cls.__module__ == "builtins":
            return
        if cls in self._classes:
            return
        self._classes.add(cls)
        if _installed(cls.__module__):
            self._emit(_version(cls.__module__), _module_digest(sys.modules.get(cls.__module__)))
            return
        for base in cls.__bases__:
            self._class(base, where)
        for name in sorted(vars(cls)):
            if name not in _SKIPPED_OF_CLASS:
                self._emit(name)
                self.add(vars(cls)[name], f"{cls.__qualname__}.{name}")

    def _function(self, function, where):
        name = getattr(function, "__module__", None) or ""
        self._emit("function", name, function.__qualname__)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            self.add(content, f"a variable around {function.__qualname__}")
        self.add((function.__defaults__, function.__kwdefaults__), f"a default of {function.__qualname__}")
        if _installed(name):
            self._emit(_version(name), _module_digest(sys.modules.get(name)))
            return
        self._code(function.__code__)
        found = function.__globals__
        names = sorted(set(_names(function.__code__)))
        for read in names:
            if read in found:
                self._emit("global", read)
                self.add(found[read], f"the global '{read}' of {name}")
                if isinstance(found[read], types.ModuleType) and not _installed(found[read].__name__):
                    self._members(found[read], names)

    def _members(self, module, names):
        """What code may read of a module of the user's: `import layers; layers.EPSILON`."""
        for name in names:
            if name in vars(module):
                self._emit("member", name)
                self.add(vars(module)[name], f"'{name}' of {module.__name__}")

    def _code(self, code):
        self._emit("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            elif isinstance(constant, frozenset):
                self._emit("frozenset", *sorted(map(repr, constant)))
            else:
                self._emit(type(constant).__name__, repr(constant))


def _names(code):
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _module_digest(module):
    path = getattr(module, "__file__", None)
    return _file_digest(path) if path else ""
