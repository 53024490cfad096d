"""What a step leaves to the forwards that it runs."""

import abc


class Allowance(abc.ABC):
    @abc.abstractmethod
    def apply(self, agent):
        """To the next forward of a TrainingAgent, whose sizes are known."""

    def backward_begins(self):  # noqa: B027
        """That of any of the forwards, or a region of it."""

    def ran_in_pytorch(self):  # noqa: B027
        """What an agent would have run."""
