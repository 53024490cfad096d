"""State of the process that forward may ask for, beyond what every graph depends on: settings of PyTorch's, and
variables of the environment."""

import torch

# Called without arguments, they tell a setting and do nothing.
_STATES = (
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.get_deterministic_debug_mode,
    torch.get_float32_matmul_precision,
    torch.get_num_interop_threads,
    torch.get_num_threads,
    torch.is_anomaly_check_nan_enabled,
    torch.is_anomaly_enabled,
    torch.is_deterministic_algorithms_warn_only_enabled,
    torch.is_warn_always_enabled,
)
_NAMES_OF_ENVIRONMENT = frozenset(("environ", "getenv"))
_LONGEST = 100


def is_state(thing):
    return any(thing is state for state in _STATES)


def flags(module, names):
    """Those of the names that are a flag of this module of torch.backends: a property, which its table lacks."""
    if not isinstance(module, torch.backends.PropModule):
        return []
    return sorted(name for name in names if isinstance(vars(type(module)).get(name), torch.backends.ContextProp))


def variables(names, texts):
    """Names of environment variables that code may read, which has these names and strings in it."""
    if _NAMES_OF_ENVIRONMENT.isdisjoint(names):
        return []
    return sorted(text for text in texts if 0 < len(text) <= _LONGEST and "=" not in text and "\0" not in text)
