"""Puts the hooks of subscribers on the modules of a model, and counts the steps."""

import contextlib
import warnings
from functools import partial

import torch
import torch.utils._pytree as pytree

from lowtide.capture.inspections import current_inspections
from lowtide.errors import UnsupportedError
from lowtide.guards.kept import Kept

from .subscriber import RuntimeStates, SubscriberBase, overrides


class SubscriberManager:
    """One model and its subscribers at a time; `GlobalSubscriberManager` is the process's."""

    def __init__(self):
        self._root = None
        self._subscribers = ()
        self._handles = []
        self._run_ctx = RuntimeStates()
        self._subscriptions = 0  # so far: tells graphs with other hooks apart

    # ---- what users call

    def subscribe(self, module, subscribers):
        """Calls `subscribers` for `module` and its children from now on; step 0 is next. What was subscribed before is
        unsubscribed. The module may be wrapped (ORTModule), or be wrapped later."""
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"expected a torch.nn.Module, found a {type(module).__name__}")
        subscribers = list(subscribers)
        if not subscribers:
            raise RuntimeError("expected at least one subscriber, found an empty list")
        for subscriber in subscribers:
            if not isinstance(subscriber, SubscriberBase):
                raise ValueError(f"expected subscribers of type SubscriberBase, found a {type(subscriber).__name__}")
        self.unsubscribe()
        self._subscribers = tuple(subscribers)
        self._run_ctx = RuntimeStates()
        self._number(_unwrapped(module))
        token = self._subscriptions
        for child in self._run_ctx.global_states.module_to_module_index:
            # Plain functions: a copy of the module shares them. The token makes what is left in copies do nothing.
            pre = partial(_pre_forward, self, token, child is self._root)
            post = partial(_post_forward, self, token, child is self._root)
            self._handles.append(child.register_forward_pre_hook(_shared(pre), with_kwargs=True))
            self._handles.append(child.register_forward_hook(_shared(post)))

    def unsubscribe(self):
        """Takes all hooks away; without a subscription, does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._subscribers = ()
        self._root = None
        self._run_ctx = RuntimeStates()
        self._subscriptions += 1

    def get_subscriber(self, subscriber_type):
        """The first subscriber of this class. RuntimeError without."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, subscriber_type):
                return subscriber
        raise RuntimeError(f"no {subscriber_type.__name__} is subscribed")

    def get_run_context(self):
        return self._run_ctx

    # ---- what the wrapper asks

    @property
    def current_step(self):
        return self._run_ctx.global_states._step

    def active(self):
        """The subscribers whose range holds this step."""
        return [subscriber for subscriber in self._subscribers if subscriber.runs_in(self.current_step)]

    def capture_key(self):
        """Changes where a graph that was captured with the hooks' work in it would be another one now."""
        if not self._subscribers:
            return None
        return self._subscriptions, tuple(subscriber.runs_in(self.current_step) for subscriber in self._subscribers)

    def end_step(self):
        self._run_ctx.global_states._step += 1

    # ---- hooks

    def _number(self, root):
        """Depth first, siblings in their order, a shared module once."""
        self._root = root
        states = self._run_ctx.global_states
        states.module_to_module_index.clear()
        states.module_index_to_depth.clear()

        def visit(module, depth):
            module = _unwrapped(module)
            if module in states.module_to_module_index:
                return
            number = len(states.module_to_module_index)
            states.module_to_module_index[module] = number
            states.module_index_to_depth[number] = depth
            for child in module.children():
                visit(child, depth + 1)

        visit(root, 1)

    def _enter(self, token, module, is_root):
        """The subscribers to call around this module's forward."""
        if token != self._subscriptions or in_backward():
            return ()
        if is_root and module is not self._root:
            warnings.warn(
                f"the {type(module).__name__} was copied after the subscription; its modules are numbered anew",
                stacklevel=2,
            )
            self._number(module)
        if module not in self._run_ctx.global_states.module_to_module_index:
            return ()
        return self.active()


def _shared(function):
    """A hook that copy.deepcopy of its module does not copy."""

    def hook(*arguments):
        return function(*arguments)

    return hook


def _pre_forward(manager, token, is_root, module, args, kwargs):
    subscribers = manager._enter(token, module, is_root)
    context = manager._run_ctx
    for subscriber in subscribers:
        with _watched(subscriber):
            if is_root:
                args, kwargs = subscriber.pre_forward_outmost_module_apply_impl(context, module, args, kwargs)
            args, kwargs = subscriber.pre_forward_module_apply_impl(context, module, args, kwargs)
            if overrides(subscriber, "pre_forward_tensor_apply_impl"):
                apply = partial(subscriber.pre_forward_tensor_apply_impl, context, module)
                args, kwargs = _map_tensors(apply, (args, kwargs))
    return (args, kwargs) if subscribers else None


def _post_forward(manager, token, is_root, module, args, outputs):
    context = manager._run_ctx
    for subscriber in manager._enter(token, module, is_root):
        with _watched(subscriber):
            args, outputs = subscriber.post_forward_module_apply_impl(context, module, args, outputs)
            if overrides(subscriber, "post_forward_tensor_apply_impl"):
                outputs = _map_tensors(partial(subscriber.post_forward_tensor_apply_impl, context, module), outputs)
            if is_root:
                args, outputs = subscriber.post_forward_outmost_module_apply_impl(context, module, args, outputs)
    if is_root and module is manager._root and not in_backward():
        if torch.compiler.is_compiling():
            inspections = current_inspections()
            if inspections is not None:
                inspections.clock = manager
                inspections.steps += 1
        else:
            manager.end_step()
    return outputs


def _map_tensors(function, tree):
    """`tree` itself where no tensor was replaced."""
    leaves, spec = pytree.tree_flatten(tree)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    replaced = False
    for index, place in enumerate(places):
        result = function(index, leaves[place])
        replaced = replaced or result is not leaves[place]
        leaves[place] = result
    return pytree.tree_unflatten(leaves, spec) if replaced else tree


@contextlib.contextmanager
def _watched(subscriber):
    """While a graph is made, a subscriber that counts or collects would do so once and never again."""
    if not torch.compiler.is_compiling():
        yield
        return
    kept = Kept()
    kept.keep(vars(subscriber), lambda name: f"'{name}'")
    for name, value in vars(subscriber).items():
        kept.keep(value, f"'{name}'")
    try:
        yield
        if changes := kept.changes():
            raise UnsupportedError(
                f"the subscriber {type(subscriber).__name__} changes its attribute {changes.words}, "
                "which a graph would freeze"
            )
    finally:
        kept.restore()


def _unwrapped(module):
    """An ORTModule keeps what it wraps out of its table of modules, which is the wrapped module's own."""
    while isinstance(vars(module).get("_original"), torch.nn.Module):
        module = vars(module)["_original"]
    return module


def in_backward():
    """Backward runs forward again under torch.utils.checkpoint: these are no activations of their own."""
    return torch._C._current_graph_task_id() != -1


GlobalSubscriberManager = SubscriberManager()
