"""FusedAdam: ORTModule's optimizer, its arguments and defaults, on the fused Adam of PyTorch."""

import enum
import math

import torch
from torch.optim.adam import adam


class AdamWMode(enum.IntEnum):
    ADAM_L2_REGULARIZATION = 0  # weight decay is part of the gradient, as in torch.optim.Adam
    ADAMW_TRANSFORMERS = 1  # the parameter decays after its update, and eps is not corrected for the bias
    ADAMW_TORCH = 2  # the parameter decays before its update, as in torch.optim.AdamW


class FusedAdam(torch.optim.Optimizer):
    """Adam over all parameters of a group at once.

    `adam_w_mode`: how weights decay. `bias_correction=False`: the running means count as they are. `set_grad_none`:
    zero_grad() leaves None even where it is asked for zeros.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        bias_correction=True,
        betas=(0.9, 0.999),
        eps=1e-6,
        adam_w_mode=AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay=0.0,
        set_grad_none=True,
    ):
        defaults = {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps}
        super().__init__(params, {**defaults, "weight_decay": weight_decay})
        self._mode, self._set_grad_none = AdamWMode(adam_w_mode), set_grad_none

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none=self._set_grad_none or set_to_none)

    @torch.no_grad()
    def step(self, closure=None):
        """Returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_age = {}  # parameters without a gradient are younger than the others
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_age.setdefault(self._age(parameter), []).append(parameter)
            for age, parameters in by_age.items():
                self._update(group, parameters, age + 1)
        return loss

    def _age(self, parameter):
        """In steps."""
        if parameter.grad.is_sparse:
            raise RuntimeError("FusedAdam takes no sparse gradients: torch.optim.SparseAdam does")
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return int(state["step"])

    def _update(self, group, parameters, step):
        (beta1, beta2), lr, eps, decay = group["betas"], float(group["lr"]), group["eps"], group["weight_decay"]
        states = [self.state[parameter] for parameter in parameters]
        # PyTorch's update is lr / c1 * m / (sqrt(v) / c2 + eps).
        c1, c2 = 1 - beta1**step, math.sqrt(1 - beta2**step)
        kernel_lr, kernel_eps = lr, eps
        if not group["bias_correction"]:
            kernel_lr, kernel_eps = lr * c1 / c2, eps / c2
        elif self._mode is AdamWMode.ADAMW_TRANSFORMERS:
            kernel_eps = eps / c2
        if self._mode is AdamWMode.ADAMW_TORCH:
            _shrink(parameters, lr * decay)
        adam(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=kernel_lr,
            weight_decay=decay if self._mode is AdamWMode.ADAM_L2_REGULARIZATION else 0.0,
            eps=kernel_eps,
            maximize=False,
        )
        if self._mode is AdamWMode.ADAMW_TRANSFORMERS:
            _shrink(parameters, lr * decay)


def _shrink(parameters, share):
    if share:
        for parameter in parameters:
            parameter.mul_(1 - share)
