"""Which numbers in Python objects are inputs of a mode's graphs: those that changed from call to call."""

from dataclasses import dataclass, field

from lowtide.capture import Captured
from lowtide.guards import Change
from lowtide.guards.held import told, value_at, with_held
from lowtide.guards.values import describe

_MOST = 64  # each call walks to each of them


@dataclass
class NewlyHeld:
    before: dict  # {text of a place: the number that was part of graphs, or is there now}
    why: dict  # {text: in words}
    constant: Captured | None = None  # in which they had these values

    def reason(self):
        word = "numbers" if len(self.why) > 1 else "a number"
        return Change("number", f"{'; '.join(self.why.values())}: {word} from now on")

    def without(self, texts):
        """None where nothing is left."""
        before = {text: was for text, was in self.before.items() if text not in texts}
        return NewlyHeld(before, {text: self.why[text] for text in before}, self.constant) if before else None


@dataclass
class HeldNumbers:
    """Texts of places, as guards.held has them."""

    inputs: set = field(default_factory=set)
    constants: set = field(default_factory=set)  # whose values forward needs to know
    new: NewlyHeld | None = None  # since the last graph was made

    def given(self, kwargs, module):
        """Keyword arguments of a call, with the numbers that are inputs."""
        return with_held(kwargs, sorted(self.inputs), module) if self.inputs else kwargs

    def hold_changed(self, graphs):
        """Whether numbers are inputs from now on since the latest of the graphs has other ones."""
        for graph in graphs[:1]:
            changed = self._free(graph.guards.changed_numbers())
            if len(changed) + len(self.inputs) > _MOST:
                self.constants |= changed.keys()
            elif changed:
                before = {text: was for text, (was, _) in changed.items()}
                why = {
                    text: f"`{told(text)}` was {describe(was)}, is now {describe(now)}"
                    for text, (was, now) in changed.items()
                }
                self._hold(NewlyHeld(before, why, graph.captured))
                return True
        return False

    def hold_written(self, texts, module):
        """The same of what forward itself changes."""
        before = self._free({text: value_at(module, text) for text in texts})
        if before:
            self._hold(NewlyHeld(before, {text: f"forward changes `{told(text)}`" for text in before}))
        return bool(before)

    def keep_constant(self, texts):
        texts = set(texts)
        self.inputs -= texts
        self.constants |= texts
        self.new = self.new and self.new.without(texts)

    def _free(self, places):
        return {text: place for text, place in places.items() if text not in self.inputs | self.constants}

    def _hold(self, new):
        self.inputs |= new.before.keys()
        self.new = new
