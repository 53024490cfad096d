"""Where in the model, and in the user's code, a node of a captured graph comes from."""

import re
import traceback

from .failures import user_line

# Of a module's path: as capture wraps it, and as Dynamo names the variable that it found it in: "L['self'].encoder".
_ROOT = re.compile(r"module\.|[LG]\['\w+'\]\.")


def origin(node):
    """(module path, line of the user's code). "encoder.layer@2.norm" lies in the third call of encoder.layer."""
    module = ""
    stack = node.meta.get("nn_module_stack")
    if stack:
        paths = [(str(path), str(key).partition("@")[2]) for key, (path, _) in stack.items()]
        path = paths[-1][0]
        # Each module counts its own calls: the outermost count tells them apart.
        again, call = next(((entry, count) for entry, count in paths if count), ("", ""))
        if call:
            path = f"{again}@{call}{path.removeprefix(again)}"
        found = _ROOT.match(path)
        module = path[found.end() :] if found else ""
    frames = [
        traceback.FrameSummary(match[0], int(match[1]), match[2])
        for match in re.findall(r'File "([^"]+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    ]
    return module, user_line(frames)
