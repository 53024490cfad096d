"""python -m lowtide.utils.hooks.merge_activation_summary."""

import subprocess
import sys

import torch

from lowtide.utils.hooks import GlobalSubscriberManager, StatisticsSubscriber
from lowtide.utils.hooks.merge_activation_summary import main


def write_run(folder, model, steps=2):
    GlobalSubscriberManager.subscribe(model, [StatisticsSubscriber(folder)])
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
    GlobalSubscriberManager.unsubscribe()


def test_two_runs_are_joined_in_order_and_missing_files_listed(tmp_path, capsys):
    write_run(tmp_path / "pt", torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()))
    write_run(tmp_path / "ort", torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sigmoid()), steps=1)
    arguments = ["--pt_dir", tmp_path / "pt", "--ort_dir", tmp_path / "ort", "--output_dir", tmp_path / "out"]
    command = [sys.executable, "-m", "lowtide.utils.hooks.merge_activation_summary", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 0: Tanh_2_0th_output_forward not in --ort_dir" in done.stdout
    assert "step 0: Sigmoid_2_0th_output_backward not in --pt_dir" in done.stdout
    assert "step 1: Linear_1_0th_output_forward not in --ort_dir" in done.stdout
    assert not done.stderr
    merged = tmp_path / "out" / "merge_pt" / "step_0_.txt"
    names = [line.split()[0] for line in merged.read_text().splitlines() if " run shape: " in line]
    assert names == [
        ">>Linear_1_0th_output",
        ">>Tanh_2_0th_output",
        ">Sequential_0_0th_output",
        ">>Tanh_2_0th_output",
        ">Sequential_0_0th_output",
        ">>Linear_1_0th_output",
    ]
    assert "Tanh_2_0th_output_forward: not in this run" in (tmp_path / "out/merge_ort/step_0_.txt").read_text()

    assert main([str(argument) for argument in arguments]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main([str(argument) for argument in (*arguments, "--overwrite")]) == 0


def test_a_folder_without_steps_is_refused(tmp_path, capsys):
    (tmp_path / "pt").mkdir()
    arguments = ["--pt_dir", tmp_path / "pt", "--ort_dir", tmp_path / "no", "--output_dir", tmp_path / "out"]
    assert main([str(argument) for argument in arguments]) == 1
    assert f"found no folder {tmp_path / 'no'}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
