"""torch.inference_mode in forward: what PyTorch follows into a graph are gradients that are off, which is what it means
for one; the exporter would leave it out, and what it computes would have a gradient."""

import torch


def entered_as_no_grad(is_running):
    """{name: what stands in the place of this method of torch.inference_mode}; `is_running`: whether forward is
    traced."""
    enter, leave = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    entered = {}  # id of an inference_mode → what stands in its place

    def __enter__(mode):
        if not is_running():
            return enter(mode)
        entered[id(mode)] = torch.set_grad_enabled(not mode.mode)

    def __exit__(mode, *error):
        if (instead := entered.pop(id(mode), None)) is None:
            return leave(mode, *error)
        instead.__exit__(*error)

    return {"__enter__": __enter__, "__exit__": __exit__}
