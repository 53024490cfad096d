"""Classes of users' that are told of their subclasses: the exporter makes one of each submodule's class for a trace."""

import contextlib

from lowtide.guards.replaced import replaced_attribute

_EXPORTERS = "torch.fx."


@contextlib.contextmanager
def exporters_subclasses_untold(module):
    """While active, `__init_subclass__` of the classes of submodules does not run for the exporter's own: it may want
    arguments, and keep the class where forward finds it."""
    classes = {cls for child in module.modules() for cls in type(child).__mro__ if "__init_subclass__" in vars(cls)}
    with contextlib.ExitStack() as stack:
        for cls in classes - {object}:
            stack.enter_context(replaced_attribute(cls, "__init_subclass__", _untold(vars(cls)["__init_subclass__"])))
        yield


def _untold(original):
    def init_subclass(cls, **keywords):
        if not cls.__module__.startswith(_EXPORTERS):
            original.__get__(None, cls)(**keywords)

    return classmethod(init_subclass)
