"""What a forward that did not come to its end has changed."""

import collections

import torch

from lowtide.guards import put_back, states_now

_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_CONTAINERS = (list, set, collections.deque, *_MAPPINGS)


class ModuleState:
    """Of a module before a forward: values of buffers, which objects its attributes are, what the lists and dicts among
    them hold, the generators of random numbers. What those objects hold in turn is not known."""

    def __init__(self, module):
        self._modules = [
            (child, dict(vars(child)), [(name, buffer, buffer.detach().clone()) for name, buffer in _buffers(child)])
            for child in module.modules()
        ]
        values = (value for _, attributes, _ in self._modules for value in attributes.values())
        self._containers = [(value, _held(value)) for value in values if type(value) in _CONTAINERS]
        self._random = states_now()

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
        for container, held in self._containers:
            now = _held(container)
            if len(now) != len(held) or any(one is not other for one, other in zip(now, held, strict=True)):
                _hold(container, held)
        put_back(self._random)


def _held(container):
    return [*container, *container.values()] if type(container) in _MAPPINGS else list(container)


def _hold(container, held):
    container.clear()
    if type(container) in _MAPPINGS:
        keys = held[: len(held) // 2]
        dict.update(container, zip(keys, held[len(keys) :], strict=True))
    elif type(container) is set:
        container.update(held)
    else:
        container.extend(held)


def _buffers(module):
    """Those whose values can be kept."""
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.layout is torch.strided and not torch.nn.parameter.is_lazy(buffer):
            yield name, buffer
