"""The tensors of a call and of its module, and what stands for them in a trace."""

from lowtide.guards.questions import named_tensors


class CallTensors:
    def __init__(self, module, call):
        """Before the trace."""
        self._names, self._arguments = call.names(module.forward), call.tensors
        self._of_module = named_tensors(module)

    def tell(self, given, tensors, module):
        """To a guards.questions.Given. `tensors`: what stands for the arguments; `module`: holds what stands for its
        own."""
        for index, (name, *pair) in enumerate(zip(self._names, tensors, self._arguments, strict=True)):
            given.add(*pair, "argument", index, f"argument `{name}`")
        stand_ins = named_tensors(module)
        for path in self._of_module.keys() & stand_ins.keys():
            given.add(stand_ins[path], self._of_module[path], "tensor", path, f"'{path}'")
