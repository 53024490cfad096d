"""What programs written for onnxruntime.training import and lowtide has not: what to write instead. docs/porting.md has
the same list."""

_TRAINER = (
    "ORTTrainer was removed before ORTModule was: wrap the model, `lowtide.ORTModule(model)`, in a loop of your own"
)
_ON_DEVICE = "training on devices is not part of lowtide: export with `onnxruntime.training` where it is needed"
_EXPORTER = "the exporter is torch.export: an op of your own is a torch.library.custom_op with register_autograd"
_ZERO = (
    "under DeepSpeed's ZeRO stage 3 steps of the plan gather parameters, and no subscriber: "
    "write deepspeed.initialize(model=ORTModule(model), …)"
)

INSTEAD = {
    "lowtide.ORTTrainer": _TRAINER,
    "lowtide.ORTTrainerOptions": _TRAINER,
    "lowtide.orttrainer": _TRAINER,
    "lowtide.amp": "write torch.amp: autocast around the call and a GradScaler",
    "lowtide.checkpoint": "write torch.save(model.state_dict()): a wrapper's state_dict is the model's",
    "lowtide.artifacts": _ON_DEVICE,
    "lowtide.api": _ON_DEVICE,
    "lowtide.onnxblock": _ON_DEVICE,
    "lowtide.experimental": "the training graph as ONNX is what DebugOptions(save_onnx=True) writes",
    "lowtide.optim.AdamConfig": _TRAINER,
    "lowtide.optim.LambConfig": _TRAINER,
    "lowtide.optim.SGDConfig": _TRAINER,
    "lowtide.optim.lr_scheduler": "write torch.optim.lr_scheduler",
    "lowtide.ortmodule.ONNX_OPSET_VERSION": "graphs have no opset; files that save_onnx writes have one",
    "lowtide.ortmodule.debug_options": "write from lowtide.ortmodule import DebugOptions, LogLevel",
    "lowtide.ortmodule._fallback": "write from lowtide.ortmodule.fallback import FallbackPolicy",
    "lowtide.ortmodule._utils": "what ORTModule kept to itself is not here",
    "lowtide.ortmodule._custom_op_symbolic_registry": _EXPORTER,
    "lowtide.ortmodule._custom_gradient_registry": _EXPORTER,
    "lowtide.ortmodule.graph_optimizer_registry": "graphs are rewritten by the engine's own passes alone",
    "lowtide.ortmodule.experimental.pipe": "pipelines over devices are not part of lowtide",
    "lowtide.utils.hooks.ZeROOffloadSubscriber": _ZERO,
    "lowtide.utils.hooks._zero_offload_subscriber.ZeROOffloadSubscriber": _ZERO,
}


class Finder:
    """Last in sys.meta_path: comes to a module of these names only when nobody has it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in INSTEAD:
            raise ModuleNotFoundError(_text(name), name=name)
        return None


def missing(package, name):
    """What a package's __getattr__ raises for a name that it lacks."""
    full = f"{package}.{name}"
    if full in INSTEAD:
        return ImportError(_text(full), name=full)
    return AttributeError(f"module '{package}' has no attribute '{name}'")


def _text(name):
    return f"{name} is not part of lowtide: {INSTEAD[name]}"
