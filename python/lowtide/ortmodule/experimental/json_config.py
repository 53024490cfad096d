"""load_from_json: options of a wrapped module from a JSON file, in ORTModule's schema.

{
    "DebugOptions": {"LogLevel": "INFO", "SaveONNX": true, "ONNXPrefix": "model", "SaveONNXPath": "/folder"},
    "FallbackPolicy": ["FALLBACK_DISABLE"],
    "PropagateCastOps": {"Level": 1, "Allow": ["Transpose"]},
    "EnableCustomAutogradFunction": true,
    "SkipCheck": ["SKIP_CHECK_DEVICE"]
}
"""

import json

from lowtide import environment
from lowtide.errors import InvalidArgument
from lowtide.log import LogLevel, logger

from .._custom_autograd_function import enable_custom_autograd_support
from ..fallback import parse_policy
from ..options import DebugOptions, cast_propagation, parse_skip_checks

JSON_PATH_ENVIRONMENT_KEY = "ORTMODULE_JSON_CONFIG_PATH"

_WITHOUT_EFFECT = {
    "UseExternalGPUAllocator": "there are no CUDA kernels in this build",
    "AllowLayerNormModPrecision": "dtypes are those of the model",
    "EnableGradAccOptimization": "parameters are never copied",
    "UseStaticShape": "sizes are free until the model asks about them",
    "RunSymbolicShapeInference": "the exporter tells shapes",
    "UseMemoryEfficientGradient": "gradients lie in the planned arena",
}


def load_from_json(ortmodule, path=None):
    """Options of `ortmodule` from the file at ORTMODULE_JSON_CONFIG_PATH, or else at `path`.

    PropagateCastOps and EnableCustomAutogradFunction hold for the process, as their environment variables do. What
    means nothing here is named in the log. InvalidArgument says what is wrong in the file.
    """
    path = environment.read(JSON_PATH_ENVIRONMENT_KEY) or path
    if path is None:
        raise InvalidArgument(f"load_from_json takes a path, as an argument or in {JSON_PATH_ENVIRONMENT_KEY}")
    with open(path) as file:
        told = json.load(file)
    if not isinstance(told, dict):
        raise InvalidArgument(f"{path} holds a {type(told).__name__}, expected an object")
    load = {
        "DebugOptions": lambda value: ortmodule._configure(debug_options=_debug_options(value)),
        "FallbackPolicy": lambda value: ortmodule._configure(fallback_policy=parse_policy("|".join(value))),
        "PropagateCastOps": _propagate_cast_ops,
        "EnableCustomAutogradFunction": enable_custom_autograd_support,
        "SkipCheck": lambda value: parse_skip_checks("|".join(value)),
    }
    for key, value in told.items():
        if key in _WITHOUT_EFFECT:
            logger.warning("%s: %s has no effect in lowtide: %s", path, key, _WITHOUT_EFFECT[key])
        elif key in load:
            load[key](value)
        else:
            known = ", ".join([*load, *_WITHOUT_EFFECT])
            raise InvalidArgument(f"{path} has '{key}', expected one of {known}")


def _debug_options(told):
    _expect_keys("DebugOptions", told, ("LogLevel", "SaveONNX", "ONNXPrefix", "SaveONNXPath"))
    level = told.get("LogLevel", "WARNING")
    if level not in LogLevel.__members__:
        raise InvalidArgument(f"LogLevel is '{level}', expected one of {', '.join(LogLevel.__members__)}")
    return DebugOptions(
        log_level=LogLevel[level],
        save_onnx=told.get("SaveONNX", False),
        onnx_prefix=told.get("ONNXPrefix", ""),
        save_path=told.get("SaveONNXPath", ""),
    )


def _propagate_cast_ops(told):
    _expect_keys("PropagateCastOps", told, ("Strategy", "Level", "Allow"))
    if "Strategy" in told:
        logger.warning("PropagateCastOps.Strategy has no effect in lowtide: there is one")
    variables = {}
    if "Level" in told:
        variables["LOWTIDE_PROPAGATE_CAST_OPS_LEVEL"] = str(told["Level"])
    if "Allow" in told:
        variables["LOWTIDE_PROPAGATE_CAST_OPS_ALLOW"] = ",".join(told["Allow"])
    environment.set_again(variables)
    cast_propagation()  # says what is wrong with them


def _expect_keys(name, told, known):
    if unknown := [key for key in told if key not in known]:
        raise InvalidArgument(f"{name} has '{unknown[0]}', expected some of {', '.join(known)}")
