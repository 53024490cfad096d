"""What a forward that did not come to its end has changed."""

import torch


class ModuleState:
    """Of a module before a forward: values of buffers, which objects its attributes are, PyTorch's generator of the
    CPU. Lists and dicts that forward changes in place are not known."""

    def __init__(self, module):
        self._modules = [
            (child, dict(vars(child)), [(name, buffer, buffer.detach().clone()) for name, buffer in _buffers(child)])
            for child in module.modules()
        ]
        self._random = torch.get_rng_state()

    def put_back(self):
        for module, attributes, buffers in self._modules:
            table = vars(module)
            for name in table.keys() - attributes.keys():
                del table[name]
            table.update(attributes)
            for name, buffer, value in buffers:
                module._buffers[name] = buffer
                if not torch.equal(buffer, value):
                    with torch.no_grad():
                        buffer.copy_(value)
        torch.set_rng_state(self._random)


def _buffers(module):
    """Those whose values can be kept."""
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.layout is torch.strided and not torch.nn.parameter.is_lazy(buffer):
            yield name, buffer
