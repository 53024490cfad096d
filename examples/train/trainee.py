"""One of the two runs that train side by side: its model, its optimizer, and what was seen of it."""

import gc
import statistics
import time

import torch


class Trainee:
    def __init__(self, name, model, call, lr):
        self.name = name
        self.model = model  # the user's module, with the weights
        self.call = call  # what a step calls: the module itself, or the ORTModule around it
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
        self.losses = []
        self.step_s = []
        self.peak_bytes = None
        self.held_out_loss = None

    def step(self, batch):
        """One training step; the time is that of forward + backward + optimizer."""
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.call(**batch).loss
        loss.backward()
        self.optimizer.step()
        self.step_s.append(time.perf_counter() - start)
        self.losses.append(loss.item())

    def measure_peak(self, batch, counter, release):
        """A step whose peak is counted: above what was live before, gradients and all scratch included."""
        self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        release()
        counter.restart()
        self.step(batch)
        self.peak_bytes = counter.peak_above()

    def evaluate(self, batches):
        """The mean loss on `batches`, in evaluation mode."""
        self.call.eval()
        with torch.no_grad():
            self.held_out_loss = statistics.mean(self.call(**batch).loss.item() for batch in batches)
        self.call.train()

    @property
    def median_step_s(self):
        return statistics.median(self.step_s[1:] or self.step_s)

    @property
    def first_step_overhead_s(self):
        return self.step_s[0] - self.median_step_s
