"""Which submodules hold what forward changes: where they are, there is no graph."""

import types

from .code import content, free_cells


def holders(things, modules, hooks):
    """`modules`: by their paths; `hooks`: names of their tables of hooks. Submodules of which a table of attributes, or
    what is around a hook of theirs, is among `things`, and those that they are in; outermost first."""
    wanted = set(map(id, things))
    found = {}
    for path, module in modules.items():
        held = [vars(module), *(_around(module, hooks))]
        if path and any(id(thing) in wanted for thing in held):
            names = path.split(".")
            found.update(dict.fromkeys(modules[".".join(names[: end + 1])] for end in range(len(names))))
    return tuple(found)


def _around(module, hooks):
    for table in hooks:
        for hook in getattr(module, table).values():
            if isinstance(hook, types.FunctionType):
                for _, _, cell in free_cells(hook):
                    yield from (cell, content(cell))
