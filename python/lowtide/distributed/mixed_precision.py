"""In which dtypes `fully_shard` gathers parameters, reduces gradients and calls modules: its MixedPrecisionPolicy.

No public interface tells what a module was given. Where it is not found, or something else was set that a graph does
not have, PyTorch runs the module.
"""

import dataclasses
import functools

import torch
import torch.utils._pytree as pytree

from lowtide.errors import UnsupportedModel


@dataclasses.dataclass(frozen=True)
class Dtypes:
    """Of the parameters of one group; None: as the parameter is."""

    gathered: torch.dtype | None = None
    reduced: torch.dtype | None = None


def dtypes_of(owner, dtype):
    """Of a parameter of this dtype, `owner` being the module that `fully_shard` was called for."""
    policy = policy_of(owner)
    gathered = None if policy.param_dtype == dtype or not dtype.is_floating_point else policy.param_dtype
    reduced = None if policy.reduce_dtype == (gathered or dtype) else policy.reduce_dtype
    if torch.float16 in (reduced, gathered):
        raise UnsupportedModel("fully_shard reduces gradients in torch.float16, and divides before and after the sum")
    return Dtypes(gathered, reduced)


def policy_of(owner):
    policy = getattr(_state_of(owner), "_mp_policy", None)
    if policy is None:
        raise UnsupportedModel("this PyTorch does not tell the MixedPrecisionPolicy of fully_shard")
    return policy


def check_settings(owners):
    """UnsupportedModel where gradients are divided or reduced in another way than their mean."""
    for owner in owners:
        state = _state_of(owner)
        groups = getattr(state, "_fsdp_param_groups", None)
        for group in [getattr(state, "_fsdp_param_group", None)] if groups is None else groups:
            if group is None:
                continue
            if getattr(group, "gradient_divide_factor", None) is not None:
                raise UnsupportedModel("set_gradient_divide_factor was called for a module of fully_shard")
            if getattr(group, "_all_reduce_hook", None) is not None:
                raise UnsupportedModel("set_all_reduce_hook was called for a module of fully_shard")
            for name in ("_all_gather_comm", "_reduce_scatter_comm"):
                if not type(getattr(group, name, None)).__module__.startswith(("torch.", "builtins")):
                    raise UnsupportedModel("a module of fully_shard has a collective of the user's")


def _state_of(owner):
    find = getattr(owner, "_get_fsdp_state", None)
    return None if find is None else find()


def before_forward(owner):
    """What the policy does in a forward pre-hook with keywords, as such a hook; None: nothing."""
    policy = policy_of(owner)
    casts = policy.cast_forward_inputs and policy.param_dtype is not None
    return functools.partial(_cast_inputs, policy.param_dtype) if casts else None


def after_forward(owner):
    """What it does in a forward hook."""
    dtype = policy_of(owner).output_dtype
    return None if dtype is None else functools.partial(_cast_output, dtype)


def _cast_inputs(dtype, module, args, kwargs):
    return _cast(dtype, args), _cast(dtype, kwargs)


def _cast_output(dtype, module, args, output):
    return _cast(dtype, output)


def _cast(dtype, value):
    return pytree.tree_map(functools.partial(_cast_leaf, dtype), value)


def _cast_leaf(dtype, leaf):
    if isinstance(leaf, torch.Tensor):
        return leaf.to(dtype) if leaf.is_floating_point() else leaf
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        names = [field.name for field in dataclasses.fields(leaf)]
        return dataclasses.replace(leaf, **{name: _cast(dtype, getattr(leaf, name)) for name in names})
    return leaf
