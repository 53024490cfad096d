from .execution_manager import ExecutionManager


class TrainingManager(ExecutionManager):
    """Calls whose results may need gradients."""

    training = True
