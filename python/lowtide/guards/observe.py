"""What forward reads and changes of the Python objects around it while it is traced: noted, copied, put back.

An attribute is noted when a module, or an object that is reached through what was noted, is asked for it. Globals and
the variables around a function are not asked: what a user's functions name is looked at before, and which functions ran
is seen at each attribute and at each call of PyTorch's.
"""

import builtins
import collections
import contextlib
import functools
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterator

import torch

from lowtide.errors import UnsupportedError

from .builtin_functions import builtin_functions
from .calls import Calls
from .code import asks_itself, content, free_cells, functions_of, is_ours, is_users, is_users_name, names
from .collected import Collected, Growing, Stale
from .comparisons import Comparisons
from .compiling import Compiling
from .conditions import answering, taking_conditions
from .conversions import conversions
from .data import PastAutograd
from .frozen_leaves import FrozenLeaves
from .function_caches import FunctionCaches
from .held import InPlace, container_of, told, way_to
from .holders import holders
from .imports import imports_outside
from .inference_mode import entered_as_no_grad
from .kept import Kept
from .leftovers import alive, let_go
from .plain_numbers import PlainNumbers
from .prints import recording
from .questions import Given, attributes_of
from .replaced import element_at, put_element, refusing, replaced_attribute
from .sameness import has_dict, slots_of
from .seen import Seen
from .settings import OF_EVERY_MODULE, Settings
from .tables import KnownTensors, ListedTensors
from .traced_draws import TracedDraws, drawing_functions
from .tripwires import Seeds, Tripwire
from .values import PLAIN, PLAIN_TENSORS, entries_of
from .words import attribute_words, module_words
from .writes import Counter, is_begun, is_collected, is_computed, take_writes, writes_of

_TABLES = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type, functools.partial)
# Packages whose objects have nothing to do with what a model computes.
_LEFT_ALONE = ("torch", "lowtide", "builtins", "logging", "threading", "_thread", "weakref", "warnings")
_FREEZES = "forward changes {}, which a graph would freeze"
_BACKWARD, _GENERATOR = "forward calls backward", "forward makes a NumPy random generator"


class Observation:
    """Of one trace of `module`: `with observation: observation.call(…)`, then `seen`."""

    def __init__(self, module, counters=(), takes_as_usual=True, stale=(), growing=()):
        """Of an earlier trace: `counters`, Writes of what is only added to; `stale`, [(container, key)] of what is
        replaced, at which nobody may look; `growing`, texts of places of lists that grow. `takes_as_usual`: whether,
        where forward asks, numbers are taken for finite, and counts from data for neither 0 nor 1."""
        self.seen = Seen()
        self.writes, self.puts = [], []  # what forward sets, in each call anew: Writes, and into containers
        self.prints = []  # texts
        self.readers = ()  # submodules that read numbers out of a tensor, as readers.readers has them
        self.conditions = []  # (on sizes, what forward heard)
        self.given = Given()  # the tensors of the trace, of which forward asks questions
        self.plain_numbers = PlainNumbers()
        self.comparisons = Comparisons(self.is_running, self.plain_numbers)  # what it asks of numbers
        self.held = InPlace(module, {})
        self._modules, self._counters, self._stale = dict(module.named_modules()), counters, stale
        self._growing = {text: Growing() for text in growing}
        self.takes_as_usual, self.behind_calls = takes_as_usual, lambda: None  # which runs behind each of PyTorch's
        self._kept, self.changes, self.listed = Kept(), None, ListedTensors()  # kept.Changes that forward made
        self.compiling = Compiling(self.is_running)
        self._owners = {}  # id → object whose attributes are noted
        self._of_tables = {}  # id of a module's __dict__ → the module
        self.settings = Settings(self.seen.reads, self._of_tables, self._is_traced)
        self._scanned = set()  # ids of functions and classes
        self._patched = {}  # class → its own __getattribute__, if it has one
        self._tripped = []  # (container, key, Tripwire)
        self._tensors, self._made_aside = [], []  # weak references to those that were made
        self.thread = None  # the one that is in forward
        self._aside = False  # in what runs again in each call
        self.draws, self.tables = TracedDraws(self.comparisons), KnownTensors()
        self.caches = FunctionCaches(self._modules.values(), self.is_running, self._is_traced)
        self._stack = contextlib.ExitStack()
        self._keep_generators()
        for path, child in module.named_modules():
            self._module(child, path)
        for which in HOOKS:
            self._table(getattr(torch.nn.modules.module, f"_global{which}"), "the hooks of every module")

    def __enter__(self):
        self._stack.enter_context(replaced_attribute(torch.nn.Module, "__getattribute__", self._of_module()))
        for owner, patches in (
            (torch.nn.Module, conversions(self.is_running)),
            (torch.inference_mode, entered_as_no_grad(self.is_running)),
        ):
            for name, patch in patches.items():
                self._stack.enter_context(replaced_attribute(owner, name, patch))
        for patch in self.plain_numbers.patches():
            self._stack.enter_context(replaced_attribute(*patch))
        attention = torch.nn.functional.scaled_dot_product_attention
        for patch in (
            (torch.nn.Module, "__setattr__", self.settings.noting()),
            (torch.Tensor, "__getattr__", attributes_of(self.given, self.is_running)),
            (torch.random, "default_generator", Seeds(self)),
            (builtins, "print", recording(print, self._prints_now)),
            *builtin_functions(self.comparisons),
            *answering(self._answered, self.takes_as_usual, self.comparisons, self.given),
            *self.comparisons.patches(),
            *self.given.answers.patches(self.is_running),
            (torch.nn.functional, "scaled_dot_product_attention", taking_conditions(attention, self._answered)),
            (torch.autograd, "backward", refusing(torch.autograd.backward, self._is_traced, _BACKWARD)),
        ):
            self._stack.enter_context(replaced_attribute(*patch))
        self._stack.enter_context(imports_outside(self))
        self._stand_in_for(random, "random")
        if (numpy := sys.modules.get("numpy")) is not None:
            made = refusing(numpy.random.default_rng, self.is_running, _GENERATOR)
            self._stack.enter_context(replaced_attribute(numpy.random, "default_rng", made))
            self._stand_in_for(numpy.random, "numpy")
        return self

    def __exit__(self, kind, *_):
        """Puts everything back. UnsupportedError where forward drew from one of PyTorch's generators."""
        self._stack.close()
        self.comparisons.end()
        for cls, own in self._patched.items():
            if own is None:
                del cls.__getattribute__
            else:
                cls.__getattribute__ = own
        self._patched.clear()
        self._release_tripwires()
        draws = self._kept.draws()
        self.restore()
        if draws is not None and kind is None:
            raise UnsupportedError(_FREEZES.format(draws.words))

    def restore(self):
        self._kept.restore()

    def hold(self, module, numbers):
        """In forward these are in their places: {text of a place: what stands for the number there}."""
        for text in numbers:
            for owner, key in way_to(module, text):  # kept as they are now
                if isinstance(owner, types.ModuleType):
                    self._names(vars(owner), [key], f"of {owner.__name__}")
                else:
                    self._reach(owner, told(text))
        self.held = InPlace(module, numbers, keeps_new=True)
        stale = [(*place, Stale()) for place in self._stale]
        grown = [(*container_of(module, text), growing) for text, growing in self._growing.items()]
        for container, key, thing in (*stale, *grown):
            keep = self._kept.keep if isinstance(container, types.CellType) else self._reach
            keep(container, "a container")
            self.held.add([(container, key, thing)])
        self.seen.held |= self.held.places

    def call(self, function, *args, **kwargs):
        """function(*args, **kwargs), whose calls of PyTorch are seen. What follows is not of the user's any more."""
        self._count()
        self.thread, self.draws = threading.get_ident(), TracedDraws(self.comparisons)
        self.prints, self.conditions, self.past_autograd = [], [], PastAutograd()
        self.frozen_leaves = FrozenLeaves()
        self.given.begin()
        try:
            with self.caches, Calls(self) as calls, self.held:
                output = function(*args, **kwargs)
            calls.real.refuse_written()
            return output
        finally:
            self.thread, self.behind_calls = None, None
            self.given.end()
            self._release_tripwires()

    @contextlib.contextmanager
    def aside(self):
        """In forward, what is no part of the graph and runs again in each call: a custom Function. What it changes is
        put back."""
        self._aside = True
        try:
            with self._kept.undone():
                yield
        finally:
            self._aside = False

    def take_tables(self, arguments, numbers, lists):
        """Of a call: forward gets those of its tensors that are constants; the rest as KnownTensors has it."""
        self.tables = KnownTensors(arguments, numbers, self.given, lists)

    def _count(self):
        for write in self._counters:
            vars(self._modules[write.path])[write.name] = Counter(attribute_words(write.path, write.name))

    def take_writes(self, assigned, always):
        """At the end of forward, before its changes are noted: the values of the writes that have no step. `assigned`:
        [(Write, value)] of buffers; `always`: as take_writes has it."""
        written, self.puts = take_writes(self._kept, self._modules, self.seen, always)
        grown = [(Collected(text, True, True), Growing.take(each)) for text, each in self._growing.items()]
        if not all(is_collected(item) for _, items in grown for item in items):
            raise UnsupportedError("forward appends to a list what no graph computes")
        written = [*assigned, *written, *grown]
        self.writes = [write for write, _ in written]
        values = [value for write, value in written if write.step is None]
        return [*values, *(put.take_value() for put in self.puts)]

    def counters(self):
        """The changes as Writes, if all of them are of ints in attributes of modules; else none."""
        return writes_of(self.changes.of(int), self._modules)

    def note_changes(self):
        """At the end of forward. UnsupportedError where no later call can find them made."""
        self.changes = self._kept.changes()
        self.settings.end(self._modules, self.writes, self._owners)
        if self.changes is not None and not self.changes.may_become_stable():
            raise self.refusal()

    def refusal(self):
        """Of a module whose forward changes something."""
        error = UnsupportedError(_FREEZES.format(self.changes.words))
        error.changed, error.grown = self.changes.recurring, self.changes.grown()
        error.numbers = tuple(write.text() for write in writes_of(self.changes.of(int, float), self._modules))
        error.running = holders([thing for thing, _ in self.changes.recurring], self._modules, HOOKS)
        return error

    def refuse_leftovers(self, known):
        """After the trace: UnsupportedError where a tensor of it is kept somewhere, and it is kept there no longer.
        `known`: tensors that the trace's result holds."""
        known = {id(tensor) for tensor in known}
        for made in (self._tensors, self._made_aside):
            made[:] = [reference for reference in made if id(reference()) not in known]
        if holder := self.let_go():
            if self.changes is not None:
                raise self.refusal()
            raise UnsupportedError(f"forward keeps a tensor in {holder}, where a graph would put none")

    def let_go(self):
        """Takes what is left of the trace out of what holds it; in words, what that was, or None."""
        self._forget_aside()
        self._kept.forget_dead()
        return let_go(self.left)

    def _forget_aside(self):
        """What runs again in each call may keep what it likes, but nothing of a trace."""
        let_go(lambda: alive(self._made_aside))
        self._made_aside.clear()

    def left(self):
        """References to those of the trace's tensors that something still holds."""
        return alive(self._tensors)

    # ---- what can be reached

    def _keep_generators(self):
        self._kept.keep(random.getstate.__self__, "Python's random numbers")
        if (numpy := sys.modules.get("numpy")) is not None:
            self._kept.keep(numpy.random.get_state.__self__, "NumPy's random numbers")
        self._kept.keep(torch.default_generator, "PyTorch's random numbers")

    def _module(self, module, path):
        self._owners[id(module)] = self._of_tables[id(vars(module))] = module

        def where(name):
            return attribute_words(path, name)

        self._kept.keep_class(module, f"the class of {module_words(path)}")
        self._kept.keep(vars(module), where)
        for table in ("_parameters", "_buffers"):  # the exporter's business
            self._kept.keep_quietly(getattr(module, table))
        self._kept.keep(module._modules, where)
        for which in HOOKS:
            self._table(getattr(module, which), f"the hooks of '{path}'" if path else "the module's hooks")
        self._class(type(module))

    def _table(self, hooks, where):
        self._kept.keep(hooks, where)
        for hook in hooks.values():
            self._reach(hook, where)

    def _class(self, cls):
        """The functions of a user's class and what they name; what the class itself holds."""
        for base in cls.__mro__:
            if id(base) in self._scanned or not is_users(base):
                continue
            self._scanned.add(id(base))
            for _, function in functions_of(base):
                self._function(function)
            for name, value in list(vars(base).items()):  # what is reached may be objects of the class: it is watched
                if name[:2] != "__":
                    self._reach(value, f"attribute `{name}` of the class {base.__qualname__}")

    def _function(self, function):
        table = function.__globals__
        if id(function) in self._scanned or is_ours(table.get("__name__")):
            return
        self._scanned.add(id(function))
        if is_users_name(table.get("__name__")):
            self._names(table, names(function.__code__), f"of {table['__name__']}")
        for name, _, cell in free_cells(function):
            where = f"the variable `{name}` around {function.__qualname__}"
            self._kept.keep(cell, where)
            self._element(content(cell), where, cell, None)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._reach(default, f"a default of {function.__qualname__}")
        if isinstance(wrapped := getattr(function, "__wrapped__", None), types.FunctionType):
            self._function(wrapped)

    def _names(self, table, told, whose):
        found = [name for name in told if name in table and name != "__builtins__"]  # which the tracer replaces
        self._kept.keep_names(table, lambda name: f"the global `{name}` {whose}", found)
        for name in found:
            value = table[name]
            if not isinstance(value, types.ModuleType):
                self._element(value, f"the global `{name}` {whose}", table, name)
            elif is_users(value) and (id(value), frozenset(told)) not in self._scanned:
                self._scanned.add((id(value), frozenset(told)))
                self._names(vars(value), told, f"of {value.__name__}")

    def _reach(self, value, where, depth=8):
        """Whatever Python code could change or ask through a value."""
        if isinstance(value, (*PLAIN, torch.Tensor)) or not depth:
            return
        if isinstance(value, torch.nn.Module):
            if id(vars(value)) not in self._of_tables:
                for path, child in value.named_modules():
                    if id(child) not in self._owners:
                        self._module(child, path)
        elif isinstance(value, _CODE):
            self._code(value, where, depth)
        elif isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
            self._container(value, where, depth)
        elif not self._kept.keep(value, where) and (has_dict(value) or slots_of(type(value))):
            self._object(value, where, depth)

    def _code(self, value, where, depth):
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._reach(value.__func__, where, depth)
            self._reach(value.__self__, where, depth - 1)
        elif isinstance(value, functools.partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._reach(part, where, depth - 1)
        elif isinstance(value, type):
            self._class(value)

    def _container(self, value, where, depth):
        known = value in self._kept
        compared = isinstance(value, tuple | frozenset) or self._kept.keep(value, where)
        if known or not compared:
            return
        for key, item in entries_of(value):
            self._element(item, where, value, key, depth - 1)

    def _object(self, value, where, depth):
        cls = type(value)
        if id(value) in self._owners or cls.__module__.partition(".")[0] in _LEFT_ALONE:
            return
        self._owners[id(value)] = value

        def words(name):
            return f"attribute `{name}` of a {cls.__qualname__}"

        self._kept.keep_class(value, f"the class of a {cls.__qualname__}")
        if has_dict(value):
            self._kept.keep(vars(value), words)
        self._kept.keep_slots(value, words)
        self._class(cls)
        if not self._watch(cls) and has_dict(value):
            self.seen.opaque.add(id(value))
            for name, item in list(vars(value).items()):
                self._element(item, words(name), vars(value), name, depth - 1)

    def _element(self, value, where, container, key, depth=8):
        """An iterator is as good as one that is advanced: nobody could tell, or take it back."""
        if isinstance(value, Iterator) and not isinstance(container, tuple | set | frozenset):
            tripwire = Tripwire(value, where, self)
            self._tripped.append((container, key, tripwire))
            put_element(container, key, tripwire)
        else:
            self.caches.add(container, key, value)
            self._reach(value, where, depth)

    def _release_tripwires(self):
        for container, key, tripwire in self._tripped:
            if element_at(container, key) is tripwire:
                put_element(container, key, tripwire._lowtide_iterator)
        self._tripped.clear()

    # ---- what is asked

    def ran(self, frame):
        """Notes the code of a frame and of those that called it."""
        while frame is not None:
            if frame.f_code in self.seen.codes:
                return
            name = frame.f_globals.get("__name__")
            if name == __name__ and frame.f_code.co_name == "call":
                return
            if not is_ours(name):
                self.seen.codes[frame.f_code] = frame.f_globals
            frame = frame.f_back

    def _of_module(self):
        def record(module, name):
            if name in OF_EVERY_MODULE or name[:2] == "__" or not self.is_running():
                return object.__getattribute__(module, name)
            # Where a submodule has two names, the exporter runs stand-ins of all modules, which share their attributes.
            owner = self._of_tables.get(id(vars(module)))
            if owner is None:
                return object.__getattribute__(module, name)
            self.ran(sys._getframe(1))
            try:
                value = object.__getattribute__(module, name)
            except AttributeError:
                if not any(name in vars(module).get(table, ()) for table in _TABLES):
                    self.seen.reads[id(owner), name] = owner
                raise
            return self._note(owner, name, value)

        return record

    def _watch(self, cls):
        """Notes what objects of a class are asked; False for a class of C code."""
        if cls in self._patched:
            return True
        original = cls.__getattribute__

        def record(owner, name):
            value = original(owner, name)
            if name == "__dict__" and self._notes(owner) and asks_itself(sys._getframe(1)):
                self.seen.opaque.add(id(owner))
            return self._note(owner, name, value) if name[:2] != "__" and self._notes(owner) else value

        own = vars(cls).get("__getattribute__")
        try:
            cls.__getattribute__ = record
        except TypeError:
            return False
        self._patched[cls] = own
        return True

    def _notes(self, owner):
        return id(owner) in self._owners and self.is_running()

    def is_running(self):
        """Whether this thread is in forward."""
        return self.thread == threading.get_ident()

    def _note(self, owner, name, value):
        if isinstance(value, Counter) or self._has_set(owner, name, value) or self.settings.hold(owner, name, value):
            return value
        where = f"attribute `{name}` of a {type(owner).__qualname__}"
        if isinstance(value, Iterator):
            return Tripwire(value, where, self)
        if (id(owner), name) not in self.seen.reads:
            self.seen.reads[id(owner), name] = owner
            self._reach(value, where)
        return value

    def _has_set(self, owner, name, value):
        """Whether forward itself has computed what an attribute of a module is, or begins to: `self.losses = []`."""
        is_new = isinstance(owner, torch.nn.Module) and self._kept.is_new(vars(owner), name, value)
        return is_new and (is_computed(value) or is_begun(value) and value not in self._kept)

    def _is_traced(self):
        """Whether this thread is in forward, in what becomes the graph."""
        return self.is_running() and not self._aside

    def _stand_in_for(self, module, source):
        """The functions of a module that draw a number."""
        for name, drawing in drawing_functions(module, source, self._draws_now).items():
            self._stack.enter_context(replaced_attribute(module, name, drawing))

    def _answered(self, condition, answer):
        if self._is_traced():
            self.conditions.append((condition, answer))

    def _prints_now(self):
        return self.prints if self._is_traced() else None

    def _draws_now(self):
        """Where forward draws what a graph is chosen by, else None."""
        return self.draws if self._is_traced() else None

    def made(self, results):
        for tensor in results if isinstance(results, tuple | list) else (results,):
            if isinstance(tensor, torch.Tensor) and type(tensor) not in PLAIN_TENSORS:  # a real one is a constant
                (self._made_aside if self._aside else self._tensors).append(weakref.ref(tensor))
