"""What a trace read of the Python objects around it, of which guards are made."""

from dataclasses import dataclass, field

from .values import PLAIN_TENSORS


@dataclass
class Seen:
    """What a trace read."""

    reads: dict = field(default_factory=dict)  # (id of the owner, name) → owner: modules and objects that they hold
    codes: dict = field(default_factory=dict)  # code → its globals: what ran, but for PyTorch's own
    opaque: set = field(default_factory=set)  # ids of objects that are asked without a note
    counters: set = field(default_factory=set)  # (id of the module, name) of ints that are only added to
    of_hooks: bool = True  # whether what the module's hooks read belongs to it
    replaced: set = field(default_factory=set)  # (id of the module, name) of buffers that become others in each call
    held: set = field(default_factory=set)  # (id of a container, key) of numbers of any value
    asks_for_gradients: bool = False  # code outside of PyTorch's own machinery asked for requires_grad
    numbers_of: dict = field(default_factory=dict)  # id → tensor of no trace, whose numbers became Python's

    def note_numbers(self, tensor):
        """Of a tensor that somebody holds: where it stands for a call's, or is computed, a trace knows no numbers."""
        if type(tensor) in PLAIN_TENSORS:
            self.numbers_of[id(tensor)] = tensor
