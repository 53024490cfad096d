"""One rank of a training that saves itself after each step and goes on where the last file ends. Arguments: a folder,
the step in which rank 1 dies the first time, or -1, and the wrapper: "fully_shard", "zero3" or nothing."""

import os
import sys
from pathlib import Path

import torch
from faults import Wrapped, batch, layers
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

STEPS = 8


class Saved:
    """What a training has come to, in a folder for each step; a file names the last whole one."""

    def __init__(self, folder, wrapped):
        self._folder, self._last, self._wrapped = folder, folder / "last", wrapped

    def load(self):
        """Losses of the steps that were saved."""
        if not self._last.exists():
            return []
        path = self._folder / self._last.read_text()
        if self._wrapped.engine is not None:
            self._wrapped.engine.load_checkpoint(str(path))
        else:
            state = self._state()
            checkpoint.load(state, checkpoint_id=path)
            model, optimizer = state["model"], state["optimizer"]
            set_state_dict(
                self._wrapped.outer, self._wrapped.optimizer, model_state_dict=model, optim_state_dict=optimizer
            )
        return torch.load(path / "losses.pt")

    def save(self, losses):
        path = self._folder / str(len(losses))
        if self._wrapped.engine is not None:
            self._wrapped.engine.save_checkpoint(str(path))
        else:
            checkpoint.save(self._state(), checkpoint_id=path)
        if torch.distributed.get_rank() == 0:
            torch.save(losses, path / "losses.pt")
            (self._folder / "next").write_text(path.name)
            (self._folder / "next").rename(self._last)
        torch.distributed.barrier()

    def _state(self):
        return dict(
            zip(("model", "optimizer"), get_state_dict(self._wrapped.outer, self._wrapped.optimizer), strict=True)
        )


def main():
    folder, dies_in, wrapper = [*sys.argv[1:], ""][:3]
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = torch.distributed.get_rank()
    wrapped = Wrapped(layers(), wrapper, momentum=0.9)
    saved = Saved(Path(folder), wrapped)
    losses = saved.load()
    if rank == 0:
        print(f"begins with step {len(losses)}", flush=True)
    for step in range(len(losses), STEPS):
        loss = wrapped.outer(batch(step, rank)).square().mean()
        wrapped.backward(loss)
        if step == int(dies_in) and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(7)
        wrapped.update()
        assert wrapped.module.fallback_reason is None
        loss = loss.detach()
        torch.distributed.all_reduce(loss)
        losses.append(loss.item())
        saved.save(losses)
    if rank == 0:
        print("losses " + " ".join(map(float.hex, losses)), flush=True)
    del wrapped, saved
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
