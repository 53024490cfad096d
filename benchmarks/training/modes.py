"""The ways to run a training step that are compared: how a model is wrapped, and in which environment."""

import dataclasses
import functools
from dataclasses import dataclass, field


class NotApplicable(Exception):
    """This mode does not exist for this model; the text says why."""


def _plain(model):
    return model


def _lowtide(model):
    from lowtide.ortmodule import DebugOptions, ORTModule

    return ORTModule(model, DebugOptions())


def _loss_alone(model, **options):
    from lowtide.ortmodule import DebugOptions, ORTModule

    return ORTModule(model, DebugOptions(), keep_outputs=("loss",), **options)


def _with_statistics(model):
    """Of what every module returns, and of its gradients, in every step."""
    import atexit
    import shutil
    import tempfile

    from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber

    folder = tempfile.mkdtemp(prefix="lowtide-statistics-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(f"{folder}/run")])
    return model


def _lowtide_with_statistics(model):
    return _with_statistics(_lowtide(model))


def _compile(model):
    import torch

    return torch.compile(model)


def _through_compile(model):
    """torch.compile's Dynamo, lowtide's engine."""
    import torch

    from lowtide import compile_backend

    return torch.compile(model, backend=compile_backend.lowtide)


def _in_pieces(model):
    """Without one graph: what forward does to Python is a matter of data, between two layers, in the middle."""
    import torch

    layers = max((m for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    seen = []

    def note(module, inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.detach().abs().max() > 1e4:
            seen.append(hidden.shape)

    layers[len(layers) // 2].register_forward_hook(note)
    return _lowtide(model)


def _checkpoint(model):
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise NotApplicable("the model class has no gradient checkpointing")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


@dataclass(frozen=True)
class Mode:
    wrap: callable
    environment: dict = field(default_factory=dict)
    precision: str = "f32"


# malloc that never gives memory back: the part of a kept arena's gain that has nothing to do with planning.
KEPT_HEAP = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
}

MODES = {
    "lowtide": Mode(_lowtide),
    "level1": Mode(_lowtide, {"ORTMODULE_MEMORY_OPT_LEVEL": "1"}),
    "level2": Mode(_lowtide, {"ORTMODULE_MEMORY_OPT_LEVEL": "2"}),
    "loss": Mode(_loss_alone),
    "loss_of_all_rows": Mode(_loss_alone, {"ORTMODULE_ENABLE_SPARSE_OPTIMIZER": "0"}),
    "knee": Mode(_loss_alone, {"ORTMODULE_MEMORY_OPT_LEVEL": "auto"}),
    "statistics": Mode(_lowtide_with_statistics),
    "eager": Mode(_plain),
    "eager_statistics": Mode(_with_statistics),
    "eager_kept_heap": Mode(_plain, KEPT_HEAP),
    "compile": Mode(_compile),
    "compile_lowtide": Mode(_through_compile),
    "pieces": Mode(_in_pieces),
    "checkpoint": Mode(_checkpoint),
}
# "bf16:loss": parameters and batch in bf16; "autocast:loss": f32 parameters, the call under autocast to bf16
PRECISIONS = ("bf16", "autocast")
_BUDGET = "budget:"  # "budget:400MiB": loss under that memory_budget
_PLAN = "plan:"  # "plan:FastGelu+:1:-1": lowtide with this configuration of the memory optimizer


def split_precision(name):
    """("bf16:", "loss") of "bf16:loss"; ("", name) where it says none."""
    head, colon, rest = name.partition(":")
    return (head + colon, rest) if head in PRECISIONS else ("", name)


def is_mode(name):
    _, name = split_precision(name)
    return name in MODES or name.startswith((_PLAN, _BUDGET))


def find_mode(name):
    precision, name = split_precision(name)
    if precision:
        return dataclasses.replace(find_mode(name), precision=precision.removesuffix(":"))
    if name.startswith(_PLAN):
        return Mode(_lowtide, {"ORTMODULE_MEMORY_OPT_CONFIG": name.removeprefix(_PLAN)})
    if name.startswith(_BUDGET):
        return Mode(functools.partial(_loss_alone, memory_budget=name.removeprefix(_BUDGET)))
    return MODES[name]


def split_modes(text):
    """Names joined by commas; those of a plan's own configuration stay in it."""
    names = []
    for part in text.split(","):
        if names and names[-1].startswith(_PLAN) and not is_mode(part):
            names[-1] += f",{part}"
        else:
            names.append(part)
    return names
