"""Starts a script on several processes of this machine."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

# An optional library of hundreds of MB, which only ZeRO's users have.
with_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed: see requirements-libraries.txt"
)


def run_ranks(script, *arguments, ranks=2, timeout=240, max_restarts=0, **variables):
    """With torchrun's launcher: their output, where all of them end well. A hang ends after `timeout` seconds, with all
    processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={max_restarts}", str(TESTS / "distributed" / script), *map(str, arguments)]
    if max_restarts:
        # Else torchrun's own store outlives a start, and the next one finds addresses of processes that are gone there
        # (PyTorch's issue 135712).
        variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **variables}
    started = _start(command, variables)
    try:
        output, _ = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        started.terminate()  # it ends its ranks, which are in sessions of their own
        output, _ = started.communicate()
        _log(script, arguments, ranks, output)
        raise AssertionError(f"{script} {arguments} did not end within {timeout} s:\n{output[-4000:]}") from None
    _log(script, arguments, ranks, output)
    assert started.returncode == 0, output[-4000:]
    return output


def _log(script, arguments, ranks, output):
    """For who asks which tests have run (`./dev bench distributed --tests`): the cases that all ranks found right."""
    if path := os.environ.get("LOG_OF_RANKS"):
        right = [case for case in arguments if output.count(f" {case}: right on rank") == ranks]
        run = {"script": script, "arguments": arguments, "ranks": ranks, "right": right}
        with open(path, "a") as file:
            file.write(json.dumps(run) + "\n")


def run_until_one_ends(script, *arguments, number, ranks=2, timeout=120):
    """Without a launcher, which would end all ranks with the first: (exit status, output) of rank `number` when it has
    ended by itself. The others are killed then."""
    command = [sys.executable, str(TESTS / "distributed" / script), *map(str, arguments)]
    started = [_start(command, {"RANK": str(rank)}) for rank in range(ranks)]
    try:
        output, _ = started[number].communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"rank {number} of {script} {arguments} did not end within {timeout} s") from None
    finally:
        for process in started:
            _kill(process)
    return started[number].returncode, output


def _start(command, variables):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE", **variables}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [environment.get("PYTHONPATH")])])
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def _kill(started):
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
