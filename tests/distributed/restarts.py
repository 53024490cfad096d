"""One rank of a training that saves itself after each step and goes on where the last file ends. Arguments: a folder,
the step in which rank 1 dies the first time, or -1."""

import os
import sys
from pathlib import Path

import torch
from faults import batch, layers
from torch.nn.parallel import DistributedDataParallel

from lowtide.ortmodule import ORTModule


def main():
    folder, dies_in = Path(sys.argv[1]), int(sys.argv[2])
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = torch.distributed.get_rank()
    model = layers()
    outer = DistributedDataParallel(ORTModule(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saved, losses = folder / "saved.pt", []
    if saved.exists():
        found = torch.load(saved)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        losses = found["losses"]
    if rank == 0:
        print(f"begins with step {len(losses)}", flush=True)
    for step in range(len(losses), 8):
        optimizer.zero_grad()
        loss = outer(batch(step, rank)).square().mean()
        loss.backward()
        if step == dies_in and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(7)
        optimizer.step()
        torch.distributed.all_reduce(loss.detach_())
        losses.append(loss.item())
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            torch.save(state, folder / "half.pt")
            (folder / "half.pt").rename(saved)
        torch.distributed.barrier()
    if rank == 0:
        print("losses " + " ".join(map(float.hex, losses)), flush=True)
    del outer
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
