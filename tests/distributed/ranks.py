"""Starts a script on several processes of this machine with torchrun's launcher."""

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def run_ranks(script, *arguments, ranks=2, timeout=240, **variables):
    """Their output, where all of them end well. A hang ends after `timeout` seconds, with all processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE", **variables}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(TESTS / "distributed" / script), *map(str, arguments)]
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = started.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        output, _ = started.communicate()
        raise AssertionError(f"{script} {arguments} did not end within {timeout} s:\n{output[-4000:]}") from None
    assert started.returncode == 0, output[-4000:]
    return output
