from .execution_manager import ExecutionManager


class InferenceManager(ExecutionManager):
    """Calls under torch.no_grad: forward only, nothing kept."""

    training = False
