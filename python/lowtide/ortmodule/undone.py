"""What a forward that did not come to its end has changed."""

import torch

_PLAIN = (bool, int, float, str, type(None))


class ModuleState:
    """Of a module before a forward: values of buffers, plain attributes, PyTorch's generator of the CPU."""

    def __init__(self, module):
        self._modules = [
            (
                child,
                [(name, buffer, buffer.detach().clone()) for name, buffer in _buffers(child)],
                {name: value for name, value in vars(child).items() if type(value) in _PLAIN},
            )
            for child in module.modules()
        ]
        self._random = torch.get_rng_state()

    def put_back(self):
        for module, buffers, plain in self._modules:
            for name, buffer, value in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, value):
                    with torch.no_grad():
                        buffer.copy_(value)
            for name, value in plain.items():
                if vars(module).get(name) is not value:
                    vars(module)[name] = value
        torch.set_rng_state(self._random)


def _buffers(module):
    """Those whose values can be kept."""
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.layout is torch.strided and not torch.nn.parameter.is_lazy(buffer):
            yield name, buffer
