"""One rank, under the counter of malloc and mmap: a step under fully_shard needs what is planned, and little beside
it."""

import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "training"))
from measure import release_caches  # noqa: E402
from memory_counter import MemoryCounter  # noqa: E402

from lowtide.ortmodule import ORTModule  # noqa: E402

WIDTH = 2048
BESIDE = 6 << 20  # bytes of messages; a whole parameter is 16 MiB


def main():
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    for layer in model:
        fully_shard(layer)
    module, x = ORTModule(fully_shard(model)), torch.ones(16, WIDTH)

    def step():
        module.zero_grad(set_to_none=True)
        module(x).square().mean().backward()

    counter = MemoryCounter()
    step(), step()
    module.zero_grad(set_to_none=True)
    release_caches()
    counter.restart()
    step()
    planned, needed = module.memory_report()["planned_peak_bytes"], counter.peak_above()
    assert module.fallback_reason is None, module.fallback_reason
    assert 0.98 * planned < needed < planned + BESIDE, f"{needed} bytes, planned {planned}"
    print(f"needs {needed} bytes, planned {planned}: right on rank {torch.distributed.get_rank()}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
