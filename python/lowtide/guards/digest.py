"""Hashes of Python objects that are the same in another process: of what a stored graph depends on."""

import enum
import functools
import hashlib
import importlib.metadata
import re
import sys
import types
from pathlib import Path, PurePath

import torch

from lowtide import _lowtide

from .code import functions_of, is_users, names
from .values import CONTAINERS, PLAIN, base_of, is_array

_BY_TEXT = (range, slice, torch.layout, torch.memory_format, re.Pattern, PurePath)
_BY_NAME = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type(torch.ops.aten.add),
)


_DEEPEST = 4  # containers in containers of a library


class NotCacheable(Exception):
    """With the reason."""


class Digest:
    """A hash that grows."""

    def __init__(self):
        self._hash = hashlib.sha256()
        self._classes = set()

    def hex(self):
        return self._hash.hexdigest()

    def add(self, *words):
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode(errors="surrogatepass")
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def value(self, value, where):
        """`where`: in words, for the reason of a NotCacheable."""
        if isinstance(value, enum.Enum):
            self.add("enum", type(value).__qualname__, value.name)
        elif isinstance(value, (*PLAIN, *_BY_TEXT)):
            self.add(type(value).__qualname__, repr(value))
        elif isinstance(value, list | tuple):
            self.add(type(value).__qualname__, base_of(value).__len__(value))
            for item in base_of(value).__iter__(value):
                self.value(item, where)
        elif isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, types.MethodType):
            self.function(value.__func__)
        elif isinstance(value, type):
            self.cls(value)
        elif isinstance(value, types.ModuleType):
            self.add("import", value.__name__, "" if is_users(value) else _version(value.__name__))
        elif isinstance(value, types.CodeType):
            self.code(value)
        elif isinstance(value, _BY_NAME):
            self.add("builtin", getattr(value, "__module__", ""), getattr(value, "__qualname__", str(value)))
        elif type(value).__module__.startswith("torch._ops"):
            self.add("op", str(value))
        elif isinstance(value, torch.Tensor) or is_array(value):
            raise NotCacheable(f"{where} is a {type(value).__qualname__} that no graph can hold")
        elif isinstance(value, torch.nn.Module | functools.partial | property) or hasattr(value, "__dict__"):
            self.cls(type(value))  # what forward asks it is told by itself
        else:
            raise NotCacheable(f"{where} is a {type(value).__module__}.{type(value).__qualname__}")

    def registry(self, value, depth=_DEEPEST):
        """A container of a library's, whose own objects may be anything: functions and classes of users in it count by
        their code."""
        if isinstance(value, CONTAINERS) and depth:
            self.add(type(value).__qualname__, base_of(value).__len__(value))
            parts = dict.items(value) if isinstance(value, dict) else base_of(value).__iter__(value)
            for part in sorted(parts, key=repr) if isinstance(value, set | frozenset) else parts:
                self.registry(part, depth - 1)
            return
        try:
            self.value(value, "")
        except NotCacheable:
            self.add("object", type(value).__module__, type(value).__qualname__)

    def cls(self, cls):
        self.add("class", cls.__module__, cls.__qualname__)
        if cls in self._classes or cls.__module__ == "builtins":
            return
        self._classes.add(cls)
        if not is_users(cls):
            self.add(_version(cls.__module__), _file_of(cls.__module__))
            return
        for base in cls.__bases__:
            self.cls(base)
        for name, function in functions_of(cls):
            self.add(name)
            self.function(function)

    def function(self, function):
        name = function.__globals__.get("__name__") or ""
        self.add("function", name, function.__qualname__)
        if is_users(function):
            self.code(function.__code__)
        else:
            self.add(_version(name), _file_of(name))

    def code(self, code):
        self.add("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.code(constant)
            elif isinstance(constant, frozenset):
                self.add("frozenset", *sorted(map(repr, constant)))
            else:
                self.add(type(constant).__name__, repr(constant))


def code_digest(thing):
    """Of a class of autograd.Function, or an op that torch.library.custom_op made: its code, that of the functions
    which it names, and the plain values among the globals that these name."""
    digest = Digest()
    if isinstance(thing, torch._ops.OpOverload):
        definition = getattr(torch._library.custom_ops, "OPDEFS", {}).get(thing._schema.name)
        if definition is None:
            name = thing._schema.name
            raise NotCacheable(f"forward calls {name}, which is no torch.library.custom_op: its code cannot be seen")
        digest.add("custom op", definition._qualname, definition._schema)
        parts = [getattr(definition, part, None) for part in ("_init_fn", "_abstract_fn", "_setup_context_fn")]
        pending = [*parts, getattr(definition, "_backward_fn", None), *definition._backend_fns.values()]
    else:
        digest.cls(thing)
        pending = [function for _, function in functions_of(thing)]
    seen = set()
    while pending:
        function = pending.pop()
        if not isinstance(function, types.FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        digest.function(function)
        if not is_users(function):
            continue
        for name in sorted(names(function.__code__) & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, PLAIN):
                digest.add(name, type(value).__qualname__, repr(value))
            pending.append(value)
        for cell in function.__closure__ or ():
            try:
                pending.append(cell.cell_contents)
            except ValueError:
                continue
            if isinstance(pending[-1], PLAIN):
                digest.add(repr(pending[-1]))
    return digest.hex()


@functools.cache
def build():
    """Of lowtide, PyTorch and Python, and what this machine's kernels are chosen by."""
    files = [Path(_lowtide.__file__), *sorted(Path(__file__).parents[1].rglob("*.py"))]
    digests = [_file_digest(str(path)) for path in files]
    isa = torch.backends.cpu.get_cpu_capability()
    return (*digests, str(torch.__version__), sys.version, isa)


@functools.cache
def _file_digest(path):
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _file_of(name):
    path = getattr(sys.modules.get(name), "__file__", None)
    return _file_digest(path) if path else ""


@functools.cache
def _version(name):
    top = name.partition(".")[0]
    if version := getattr(sys.modules.get(top), "__version__", ""):
        return str(version)
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        return ""
