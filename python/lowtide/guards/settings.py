"""What forward sets attributes of modules to without having asked for them, `self.mode = "long"`: each call of a graph
sets them again, whoever has set them to something else meanwhile, another graph for one."""

from dataclasses import dataclass

import torch

from .sameness import has_dict
from .values import PLAIN
from .writes import Write

# Of nn.Module itself: the tables, guarded as such, and what no forward asks for.
OF_EVERY_MODULE = frozenset((*vars(torch.nn.Module()), *vars(torch.nn.Module))) - {"training", "forward"}


@dataclass(frozen=True)
class Setting:
    """`module.name = value` after a call; `path` of the module."""

    path: str
    name: str
    value: object

    def make(self, module):
        vars(module.get_submodule(self.path))[self.name] = self.value


def is_lasting(value):
    """Whether nobody can change it in its place."""
    return isinstance(value, PLAIN) or type(value) is tuple and all(isinstance(item, PLAIN) for item in value)


class Settings:
    """Of one trace."""

    def __init__(self, reads, tables, is_traced):
        """`reads` of Seen; `tables`: {id of a module's __dict__: module}."""
        self._reads, self._tables, self._is_traced = reads, tables, is_traced
        self._set = set()  # (id of a module, name)
        self.again = ()  # Setting
        self.settled = ()  # [(dict, key)] of what an earlier trace has changed, which calls find done
        self.left = set()  # (id of a dict, key) of what an earlier trace has set, and no call sets again

    def noting(self):
        """In the place of Module.__setattr__."""
        assign = torch.nn.Module.__setattr__

        def assigning(module, name, value):
            assign(module, name, value)
            owner = self._tables.get(id(vars(module))) if self._is_traced() else None
            if owner is not None and name not in OF_EVERY_MODULE and (id(owner), name) not in self._reads:
                self._set.add((id(owner), name))

        return assigning

    def hold(self, owner, name, value):
        """Whether what forward finds there now is nothing but what it has set."""
        return is_lasting(value) and (id(owner), name) in self._set

    def end(self, modules, writes, owners):
        """Of forward: what calls set again; what an earlier trace has set besides is what they find, or it is no
        graph of theirs. `modules`: {path: module}; `owners`: {id: what has attributes}."""
        self.again = self._taken(modules, writes)
        tables = {id(vars(owner)): owner for owner in owners.values() if has_dict(owner)} if self.settled else {}
        for table, key in self.settled:
            owner = tables.get(id(table))
            if owner is not None and self.hold(owner, key, table.get(key, self)):
                continue
            self.left.add((id(table), key))
            if owner is not None:
                self._reads[id(owner), key] = owner

    def _taken(self, modules, writes):
        """Of what is as it was before, or it is Changes' business, and none of `writes`."""
        known = {(write.path, write.name) for write in writes if type(write) is Write}
        return tuple(
            Setting(path, name, vars(module)[name])
            for path, module in modules.items()
            for owner, name in sorted(self._set)
            if owner == id(module) and name != "training" and (path, name) not in known
            if is_lasting(vars(module).get(name, self))
        )
