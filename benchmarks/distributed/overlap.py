"""One rank, started by torchrun: when gradients leave and buckets travel while a step's backward runs under
DistributedDataParallel. Leaves a file of JSON: milliseconds since backward began."""

import argparse
import gc
import json
import time
from pathlib import Path

import torch
from models import build
from modes import find_mode
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 3


class Recorder:
    """Events of one backward at a time."""

    def __init__(self, outer):
        self.events, self.start = [], 0
        for index, parameter in enumerate(outer.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self._note("gradient", index))
        outer.register_comm_hook(None, self._send)

    def begin(self):
        self.events, self.start = [], time.perf_counter()

    def _note(self, kind, index, **more):
        self.events.append({"kind": kind, "index": index, "ms": (time.perf_counter() - self.start) * 1e3, **more})

    def _send(self, _, bucket):
        index, buffer = bucket.index(), bucket.buffer()
        self._note("begins", index, bytes=buffer.numel() * buffer.element_size())
        buffer.div_(torch.distributed.get_world_size())
        future = torch.distributed.all_reduce(buffer, async_op=True).get_future()

        def ended(done):
            self._note("ends", index)
            return done.value()[0]

        return future.then(ended)


def record(model_name, mode_name):
    model, make_batch = build(model_name)
    outer = DistributedDataParallel(find_mode(mode_name).wrap(model))
    recorder, batch = Recorder(outer), make_batch()
    for _ in range(WARM_UP + 1):
        outer.zero_grad(set_to_none=True)
        loss = outer(**batch).loss
        torch.distributed.barrier()
        recorder.begin()
        loss.backward()
        backward_ms = (time.perf_counter() - recorder.start) * 1e3
    return {"backward_ms": backward_ms, "events": recorder.events}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("model", "mode", "folder"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    torch.distributed.init_process_group("gloo")
    found = record(arguments.model, arguments.mode)
    Path(arguments.folder, f"rank{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    gc.collect()  # PyTorch may hang where a DistributedDataParallel is freed behind its group
    torch.distributed.destroy_process_group()
