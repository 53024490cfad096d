"""What a step leaves to the forwards that it runs."""


class Allowance:
    def apply(self, agent):
        """To the next forward of a TrainingAgent, whose sizes are known."""
        raise NotImplementedError

    def backward_begins(self):
        """That of any of the forwards, or a region of it."""

    def ran_in_pytorch(self):
        """What an agent would have run."""
