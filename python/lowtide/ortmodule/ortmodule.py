"""The wrapper that users see: an ordinary nn.Module."""

import contextlib
import copy
import functools
import inspect
import types
import warnings
import weakref
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from lowtide import _lowtide, environment, log
from lowtide.capture import exclusive, exports_elsewhere, parse_keep_outputs, tensors_by_device, where_tensors_are
from lowtide.distributed import hand_on, is_sharded_class
from lowtide.errors import BadInitialization, InvalidArgument, UnsupportedDevice, UnsupportedModel

from . import terminal_log
from .budget import asked_budget, parse_budget
from .fallback import check_initialization
from .inference_manager import InferenceManager
from .longest import bounds_of, longest, symbols_of
from .options import DebugOptions, skip_checks
from .pieces import Pieces
from .pieces_step import summary_of
from .training_manager import TrainingManager

# torch.compiler.is_compiling() and torch.jit.is_tracing(), asked at each call.
_compiler, _is_tracing = torch.compiler, torch._C._is_tracing

# nn.Module's tables: the wrapper's are the wrapped module's own, so that names have no prefix.
_SHARED = (
    *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
# The wrapper's own: they run around each call, while the module's run inside and are captured.
_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks"),
    *("_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook"),
)
_OWN = ("_original", "_options", "_asked", "_training_manager", "_inference_manager", "forward", "training")
# accelerate keeps the forward that it replaces in the wrapper under this name.
_OWN += ("_original_forward", "_set_methods")
# Looked up on types, so that a wrapper of a container needs a class that has them.
_CONTAINER_METHODS = ("__len__", "__iter__", "__contains__", "__getitem__", "__setitem__", "__delitem__")


class _AlsoOfModule(type):
    """Of each wrapper's own class: what it lacks it has from the module's class, for code that asks `type(self)`."""

    _module_class = None

    def __getattr__(cls, name):
        if cls._module_class is None:
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        return getattr(cls._module_class, name)


class _Method:
    """In a wrapper's table where a bound method would stand, which would keep the wrapper: only the garbage collector
    would free it. Called as it is where PyTorch traces a proxy that has the table and not the class."""

    def __init__(self, bind, wrapper):
        """`bind`: from the wrapper to the bound method."""
        self.bind, self._wrapper = bind, weakref.ref(wrapper)

    def __call__(self, *args, **kwargs):
        return self.bind(self._wrapper())(*args, **kwargs)


class _Bound:
    """Of the wrapper's class: what its table has under a name, a _Method bound."""

    def __init__(self, name):
        self._name = name

    def __get__(self, wrapper, cls=None):
        if wrapper is None:
            return self
        held = wrapper.__dict__.get(self._name)
        if held is None:
            raise AttributeError(self._name)
        return held.bind(wrapper) if type(held) is _Method else held

    def __set__(self, wrapper, value):
        wrapper.__dict__[self._name] = value


@functools.cache
def _class_for(cls, module_class, overridden):
    methods = {name: _on_original(name) for name in _CONTAINER_METHODS if hasattr(module_class, name)}
    methods.update((name, _Bound(name)) for name in overridden)
    if "__len__" in methods:
        methods["__bool__"] = lambda self: bool(self._original)
    return type(cls)(cls.__name__, (cls,), {"__module__": cls.__module__, "_module_class": module_class, **methods})


class ORTModule(torch.nn.Module, metaclass=_AlsoOfModule):
    """Runs `module` in lowtide's engine: `loss = ORTModule(model)(**batch).loss; loss.backward()`.

    Parameters, buffers, state_dict, attributes and methods are the module's own, and `isinstance` finds the module's
    class as well as this one (docs/decisions/0008). What the engine cannot run, PyTorch does: one warning names the
    reason, and `fallback_reason` holds it.

    `keep_outputs`: what training steps return of the output, as paths into it: `("loss",)`, `("loss", "hidden.0", 1)`;
    the rest comes back as None, and what only it needs is neither computed nor kept (docs/wrapper.md). InvalidArgument
    for other things than paths, and in the first training step for a path that leads nowhere.

    `memory_budget`: the most bytes that a training step may need beyond what is there before it, which its plan keeps
    exactly, at the least extra time: 600_000_000, "600MiB", "0.6GB", or a part of the plan without a budget, 0.75 or
    "75%". `memory_budget_total`: the same with parameters, buffers, gradients that are kept and optimizer state counted
    in. OutOfMemory in a training step that no plan fits. LOWTIDE_MEMORY_BUDGET is the budget of wrappers without
    one.

    `verify`: each plan that a step uses is run once more without recipes; InternalError where a bit differs.
    """

    # Not torch.nn.Module's own, which PyTorch replaces for all threads while one of them exports.
    __call__ = torch.nn.Module._wrapped_call_impl

    def __new__(cls, module=None, *args, **kwargs):
        return super().__new__(_class_for(cls, type(module), _overridden(module)))

    def __init__(
        self,
        module,
        debug_options=None,
        *,
        keep_outputs=None,
        memory_budget=None,
        memory_budget_total=None,
        verify=False,
    ):
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"ORTModule wraps a torch.nn.Module, not a {type(module).__name__}")
        if debug_options is not None and not isinstance(debug_options, DebugOptions):
            raise TypeError(f"expected debug_options of type DebugOptions, got {type(debug_options).__name__}")
        own = self.__dict__
        own["_original"] = module
        mode = module.training
        super().__init__()
        self.training = mode  # nn.Module's constructor has set it, and ours is the module's
        own["_options"] = debug_options or DebugOptions()
        budget = asked_budget(memory_budget, memory_budget_total)
        own["_asked"] = {
            "keep_outputs": parse_keep_outputs(keep_outputs),
            "memory_budget": memory_budget,
            "memory_budget_total": memory_budget_total,
            "verify": bool(verify),
        }
        own["_set_methods"] = set()
        skip_checks()  # names that nobody knows are the user's mistake, though none has an effect
        for name in _SHARED:
            own[name] = getattr(module, name)
        if isinstance(module, DistributedDataParallel):
            self._take_inside_of(module)
            return
        pieces = None
        if environment.is_on_unless_off("LOWTIDE_PIECES"):
            pieces = Pieces(module, self._options, budget, self._asked["verify"])
        own["_training_manager"] = TrainingManager(
            module, self._options, self._asked["keep_outputs"], budget, self._asked["verify"], pieces=pieces
        )
        own["_inference_manager"] = InferenceManager(module, self._options, pieces=pieces)
        own["forward"] = _Method(functools.partial(types.MethodType, _with_signature_of(module)), self)
        for name in _overridden(module):
            own[name] = _Method(functools.partial(_as_wrapper, name), self)
        _warn_of_hidden_names(module)
        if isinstance(module, torch.nn.DataParallel):
            self._refuse(UnsupportedModel("the module is a torch.nn.DataParallel: replicas would share an engine"))
        by_device = tensors_by_device(module)
        if len(by_device) > 1:
            self._training_manager.expect_fallback(UnsupportedDevice(where_tensors_are(by_device)))
        terminal_log.set_up(self._options.python_level)
        with log.at(self._options.log_level):
            environment.announce()
        try:
            check_initialization()
            _lowtide.install_torch()
        except BadInitialization as error:
            self._refuse(error)

    def _take_inside_of(self, outer):
        """Its forward stays PyTorch's, and the module in it runs in the engine; what we tell is that module's."""
        if not isinstance(outer.module, ORTModule):
            outer.module = ORTModule(outer.module, self._options, **self._asked)
        inside = outer.module.__dict__
        for name in ("_training_manager", "_inference_manager"):
            self.__dict__[name] = inside[name]
        self.__dict__["forward"] = outer.forward

    def _refuse(self, error):
        self._training_manager.refuse(error)
        self._inference_manager.refuse(error)

    def _configure(self, debug_options=None, fallback_policy=None):
        """Other DebugOptions, or another FallbackPolicy than the environment's, from the next call on."""
        if debug_options is not None:
            self._options = debug_options
            terminal_log.set_up(debug_options.python_level)
        for manager in (self._training_manager, self._inference_manager):
            manager.configure(debug_options, fallback_policy)

    forward = _Bound("forward")  # with the signature of the module's

    # ---- what lowtide tells

    @property
    def fallback_reason(self):
        """None if the last call ran in the engine, else why PyTorch ran it."""
        return self._last_manager().fallback_reason

    def transition_counts(self):
        """{mode: {transition: how often}}: exports and other changes of graphs so far; docs/transitions.md tells what
        each is, and the log at INFO each one's reason."""
        return {**self._training_manager.transition_counts(), **self._inference_manager.transition_counts()}

    def memory_report(self):
        """Bytes of the last call's plan: planned_peak_bytes, arena_bytes, gradient_bytes, lower_bound_bytes,
        output_bytes, external_bytes; beside the plan held_bytes, copies of what forward writes and gradients depend on.
        None before the first call. Of a module in pieces, those of all at once. Where several calls wait for one
        backward, as in the last steps: of pending_forwards of them; each has kept_bytes until its backward, all of them
        passing_bytes and late_bytes (gradients, by late_blocks)."""
        if (step := self._last_manager().last_step) is not None and step.in_engine:
            return step.memory()
        agent = self._last_manager().last_agent
        return agent.memory_report() if agent else None

    def memory_opportunities(self, memory_optimization_config="", probe_config=""):
        """What the memory optimizer could give up in the last call's plan: one dict a row, largest saving first, with
        `combination` (as in ORTMODULE_MEMORY_OPT_CONFIG), `frequency`, `saving_bytes`, `saving_symbolic` (an expression
        of the dims "<input>_dim<i>"), `on`, and `peak_after`: the step's planned peak in bytes with the row switched
        on too. `memory_optimization_config`: another configuration than the one in force; `probe_config`: "level" or
        "level:boundary". InvalidArgument before the first training call, or for a configuration that cannot be. Of a
        module in pieces, the rows of each, with its place as `piece`."""
        if step := self._training_manager.last_step:
            return step.opportunities(memory_optimization_config, probe_config)
        agent = self._last_agent(self._training_manager)
        return agent.memory_stat(memory_optimization_config, probe_config)["rows"]

    def memory_summary(self):
        """The tables "MemoryInsight Summary" and "MemoryOptimizer Summary" of the last training call."""
        if step := self._training_manager.last_step:
            return step.texts(lambda agent, sizes: summary_of(agent.memory_stat(sizes=sizes)))
        return summary_of(self._last_agent(self._training_manager).memory_stat())

    def longest(self, budget, dim="seq", example=None, **dims):
        """The largest size of `dim` with which a training step has a plan within `budget` bytes: a size of the graph,
        "batch" for all first and "seq" for all second dims; `dims`: other sizes, else those of the last training call,
        or of `example`, the arguments of a call (a tuple, or a dict of keywords) that is captured and not run. No step
        runs: peaks are planned. InvalidArgument for a budget below the smallest size's step, and for unknown dims.

            batches = sampler(max_length=model.longest("600MiB", dim="seq", example=batch, batch=8))
        """
        wanted = parse_budget(budget, "budget")
        if wanted.fraction:
            raise InvalidArgument(f"budget is {budget!r}, expected bytes: no size has been chosen to take a part of")
        if example is None:
            agent, sizes = self._last_agent(self._training_manager), None
        else:
            args, kwargs = ((), example) if isinstance(example, dict) else (tuple(example), {})
            agent, sizes = self._training_manager.plan(args, kwargs)
        session, values = agent.session, agent.symbol_values(sizes)
        for name, size in dims.items():
            for symbol in symbols_of(name, session.symbols):
                values[session.symbols.index(symbol)] = size
        symbols = symbols_of(dim, session.symbols)
        places = [session.symbols.index(symbol) for symbol in symbols]
        bounds = bounds_of(symbols, agent.captured.imported.sizes.ranges())
        return longest(session, wanted.bytes, places, values, bounds).size

    def explain(self):
        """Per step of the plan, the kernel taken and why faster ones refused; ops that run on PyTorch."""
        if step := self._last_manager().last_step:
            return step.texts(lambda agent, sizes: agent.explain())
        agent = self._last_manager().last_agent
        return agent.explain() if agent else f"not in the engine: {self.fallback_reason or 'no call so far'}"

    def text(self, stage="plan"):
        """A stage of the last call's way: "captured", "lowered", "training", "plan" or "program"."""
        stages = ("captured", "lowered", "training", "program")
        if stage not in ("plan", *stages):
            raise InvalidArgument(f"no stage is called {stage}; there are plan, {', '.join(stages)}")

        def text(agent, sizes=None):
            if stage == "plan":
                return agent.session.plan_text(agent.symbol_values(sizes))
            return getattr(agent.session, f"{stage}_text")()

        if step := self._last_manager().last_step:
            return step.texts(text)
        return text(self._last_agent())

    @contextlib.contextmanager
    def trace(self, path):
        """Records the steps of calls like the last one into a Chrome trace (chrome://tracing) at `path`."""
        session = self._last_agent().session
        session.start_trace()
        try:
            yield
        finally:
            Path(path).write_text(session.stop_trace())

    def _last_agent(self, manager=None):
        manager = manager or self._last_manager()
        if manager.last_agent is None:
            raise InvalidArgument(f"no call has run in the engine: {manager.fallback_reason or 'none so far'}")
        return manager.last_agent

    def _last_manager(self):
        """Of the last call."""
        return max(self._training_manager, self._inference_manager, key=lambda manager: manager.last_call)

    # ---- being the module

    @property
    def module(self):
        return self._original

    @property
    def training(self):
        return self._original.training

    @training.setter
    def training(self, mode):
        self._original.training = mode

    @property
    def __class__(self):
        """The module's: `isinstance` is true of both classes, and super() works in its methods when they run on us."""
        original = self.__dict__.get("_original")
        return type(self) if original is None else type(original)

    @__class__.setter
    def __class__(self, cls):
        if is_sharded_class(cls) and not is_sharded_class(type(self._original)):
            hand_on(self, self._original)
        self._original.__class__ = cls

    def __getattr__(self, name):
        original = self.__dict__.get("_original")
        if original is None:
            raise AttributeError(name)
        value = getattr(original, name)
        if inspect.ismethod(value) and value.__self__ is original and not _is_pytorchs(value.__func__):
            # A method of the user's that calls self(...) comes through the engine.
            return types.MethodType(value.__func__, self)
        return value

    def __dir__(self):
        return sorted({*super().__dir__(), *dir(self._original)})

    def __setattr__(self, name, value):
        if name in self.__dict__ or name in _OWN or isinstance(vars(ORTModule).get(name), property):
            object.__setattr__(self, name, value)
        elif inspect.isroutine(value) and inspect.isroutine(inspect.getattr_static(type(self._original), name, None)):
            # A method is replaced for who calls it on the wrapper, as ORTModule does: the user's module keeps its own.
            object.__setattr__(self, name, value)
            self._set_methods.add(name)
        else:
            setattr(self._original, name, value)

    def __delattr__(self, name):
        if name in self._set_methods:
            self._set_methods.remove(name)
            object.__delattr__(self, name)
        else:
            delattr(self._original, name)

    def train(self, mode=True):
        self._original.train(mode)
        return self

    def apply(self, fn):
        self._original.apply(fn)
        return self

    def _apply(self, fn, recurse=True):
        self._original._apply(fn, recurse)
        return self

    def requires_grad_(self, requires_grad=True):
        self._original.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none=True):
        self._original.zero_grad(set_to_none)

    def state_dict(self, *args, **kwargs):
        return self._original.state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        return self._original.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs):
        return self._original._load_from_state_dict(*args, **kwargs)

    def named_modules(self, *args, **kwargs):
        yield from self._original.named_modules(*args, **kwargs)

    def extra_repr(self):
        return self._original.extra_repr()

    def _get_name(self):
        """The module's: transformers' label smoother shifts labels for classes of a list of names."""
        return self._original._get_name()

    def __repr__(self):
        return ORTModule.__name__ + super().__repr__().removeprefix(self._get_name())

    def _replicate_for_data_parallel(self):
        raise UnsupportedModel(
            "torch.nn.DataParallel cannot replicate an ORTModule: its replicas would share one engine"
        )

    def __deepcopy__(self, memo):
        twin = ORTModule(copy.deepcopy(self._original, memo), self._options, **self._asked)
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self._own_state(), memo))
        return twin

    def __reduce__(self):
        return functools.partial(ORTModule, **self._asked), (self._original, self._options), self._own_state()

    def __setstate__(self, state):
        self.__dict__.update(state)

    def _own_state(self):
        """What a copy has of us beside the module and the options."""
        names = (*_HOOKS, "_set_methods", *self._set_methods)
        return {name: self.__dict__[name] for name in names if self.__dict__.get(name) is not None}


def _is_pytorchs(function):
    return (getattr(function, "__module__", None) or "").split(".")[0] == "torch"


def _overridden(module):
    """Methods of nn.Module, `to` or `eval` for example, that the module's class has its own of and we don't; none of a
    module that stays PyTorch's."""
    if not isinstance(module, torch.nn.Module) or isinstance(module, DistributedDataParallel):
        return ()
    base, ours = torch.nn.Module, {"forward", "_call_impl", "_wrapped_call_impl", "_slow_forward"}
    names = [name for name, value in vars(base).items() if callable(value) and not name.startswith("__")]
    theirs = [name for name in names if name in vars(module) or getattr(type(module), name) is not getattr(base, name)]
    return tuple(name for name in theirs if name not in ours and name not in vars(ORTModule))


def _as_wrapper(name, wrapper):
    """The module's method, returning the wrapper where it returns the module."""
    method = getattr(wrapper._original, name)

    @functools.wraps(method)
    def call(*args, **kwargs):
        result = method(*args, **kwargs)
        return wrapper if result is wrapper._original else result

    return call


def _on_original(name):
    return lambda self, *args: getattr(self._original, name)(*args)


def _warn_of_hidden_names(module):
    if isinstance(module, ORTModule):
        return
    ours = {name for name in vars(ORTModule) if not name.startswith("_")} - set(dir(torch.nn.Module)) - {"training"}
    for name in sorted(ours & set(dir(module))):
        warnings.warn(
            f"{type(module).__name__}.{name} collides with ORTModule's attribute name: read it as `.module.{name}`",
            UserWarning,
            stacklevel=3,
        )


def _with_signature_of(module):
    def forward(self, *args, **kwargs):
        if _compiler._is_compiling_flag or _is_tracing():
            if not exports_elsewhere():
                return self._original(*args, **kwargs)
            with exclusive:  # until that export is done
                pass
        manager = self._training_manager if torch.is_grad_enabled() else self._inference_manager
        return manager.forward(args, kwargs)

    signature = inspect.signature(module.forward)
    bound = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = signature.replace(parameters=[bound, *signature.parameters.values()])
    forward.__doc__ = module.forward.__doc__
    return forward
