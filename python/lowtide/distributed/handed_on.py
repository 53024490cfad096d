"""`fully_shard` of a wrapper, as accelerate and Trainer call it, is `fully_shard` of the module in it.

It has divided the module's parameters, which are the wrapper's too, and put its state and its hooks on the wrapper:
they are handed on. Nothing public does that.
"""

from lowtide.errors import UnsupportedModel

_TABLES = ("_forward_pre_hooks", "_forward_hooks")
_FLAGS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


def hand_on(wrapper, module):
    """UnsupportedModel where this PyTorch keeps the state of `fully_shard` elsewhere: parameters are divided then."""
    try:
        from torch.distributed._composable_state import _get_module_state, _insert_module_state

        state = _get_module_state(wrapper)
        holders = [state, *state._fsdp_param_groups]
        replaced = [
            (holder, name, tuple(module if each is wrapper else each for each in getattr(holder, name)))
            for holder, name in zip(holders, ("_modules", *["modules"] * len(holders)), strict=False)
        ]
    except (ImportError, AttributeError, TypeError) as error:
        raise UnsupportedModel(
            f"fully_shard was called for an ORTModule: call it for the module, before ORTModule ({error})"
        ) from None
    for holder, name, modules in replaced:
        setattr(holder, name, modules)
    _insert_module_state(module, state)
    for key in [key for key in vars(wrapper) if str(key).startswith("__composable_api")]:
        vars(module).setdefault(key, {}).update(vars(wrapper).pop(key))
    for name in _TABLES:
        _move_hooks(vars(wrapper), vars(module), name)


def _move_hooks(before, after, name):
    for key, hook in list(before[name].items()):
        if (getattr(hook, "__module__", None) or "").startswith("torch.distributed.fsdp."):
            after[name][key] = before[name].pop(key)
            if name == "_forward_pre_hooks":
                after[name].move_to_end(key, last=False)
            for flag in _FLAGS:
                if flag.startswith(name) and key in before.get(flag, ()):
                    after[flag][key] = before[flag].pop(key)
