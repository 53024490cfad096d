"""DebugOptions(save_onnx=True): the stages of a graph's way as ONNX files, written when its session is made."""

import os

import torch

from lowtide._lowtide import Graph
from lowtide.errors import Error, InternalError
from lowtide.log import is_first_rank, logger

# stage → (the session's text, whether ops that ONNX lacks stay one node each); a stage of training alone comes last
_STAGES = {
    "torch_exported": ("lowered_text", False),
    "optimized": ("before_memory_text", True),
    "execution_model": ("training_text", True),
    "optimized_pre_grad": ("forward_text", True),
}
_OF_TRAINING = ("optimized_pre_grad",)


def save_stages(agent, in_training_mode, options):
    """Writes <prefix>_<stage>_<training|inference>.onnx, named by the module's mode, as ORTModule names them; a later
    graph of the module overwrites an earlier one's. A stage that cannot be written is logged: the training that it is
    about goes on."""
    if not options.save or not is_first_rank():
        return
    from lowtide import onnx_io  # the onnx package is optional

    mode = "training" if in_training_mode else "inference"
    constants = constants_of(agent.captured)
    for stage, (text, own_ops) in _STAGES.items():
        if stage in _OF_TRAINING and not agent.training:
            continue
        path = os.path.join(options.path, f"{options.name_prefix}_{stage}_{mode}.onnx")
        try:
            onnx_io.save(Graph.parse(getattr(agent.session, text)()), path, own_ops, constants)
        except InternalError as error:
            agent.bugs.tell(error)
        except (Error, OSError, ValueError) as error:
            logger.warning("%s is not saved: %s", path, error)
        except Exception as error:  # onnx.checker's own
            logger.warning("%s is not saved: onnx refuses it: %s", path, error)


def constants_of(captured):
    """name → array of what the model holds as plain tensors: no caller could give them."""
    from lowtide.onnx_io.element_types import array_from_torch

    names = [captured.graph.value_name(entry["value"]) for entry in captured.graph.inputs()]
    found = zip(names, captured.sources, strict=True)
    return {
        name: array_from_torch(source.tensor)
        for name, source in found
        if source.kind == "constant" and isinstance(source.tensor, torch.Tensor)
    }
