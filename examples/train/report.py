"""What the main job prints at its end, and whether it succeeded."""

COMPARED_STEPS = 20
TOLERANCE = 1e-4  # of the losses of the first steps, relative


def differences(eager, lowtide):
    """The relative difference of the losses, step by step."""
    return [abs(b - a) / abs(a) for a, b in zip(eager.losses, lowtide.losses, strict=True)]


def print_table(eager, lowtide, memory, every):
    """`memory`: what the module planned (ORTModule.memory_report()), or None if it ran in PyTorch."""
    found = differences(eager, lowtide)
    print(f"\n{'step':>6} {'eager loss':>12} {'lowtide loss':>13} {'difference':>11}")
    for step in sorted({1, COMPARED_STEPS, len(found), *range(every, len(found) + 1, every)}):
        if step <= len(found):
            losses = f"{eager.losses[step - 1]:12.6f} {lowtide.losses[step - 1]:13.6f}"
            print(f"{step:6d} {losses} {found[step - 1]:11.1e}")
    first = max(found[:COMPARED_STEPS])
    print(f"largest relative difference: {first:.1e} in the first {COMPARED_STEPS} steps, {max(found):.1e} in all")

    def megabytes(count):
        return f"{count / 1e6:.1f} MB"

    rows = [
        ("held-out loss", *(f"{t.held_out_loss:.4f}" for t in (eager, lowtide)), ""),
        (
            "step time, median",
            *(f"{t.median_step_s * 1e3:.0f} ms" for t in (eager, lowtide)),
            f"{eager.median_step_s / lowtide.median_step_s:.2f}x as fast",
        ),
        (
            "peak of a step, used",
            *(megabytes(t.peak_bytes) for t in (eager, lowtide)),
            f"{lowtide.peak_bytes / eager.peak_bytes:.2f} of eager's",
        ),
        ("peak of a step, planned", "", megabytes(memory["planned_peak_bytes"]) if memory else "none", ""),
        ("first step's overhead", *(f"{t.first_step_overhead_s:.1f} s" for t in (eager, lowtide)), ""),
    ]
    print(f"\n{'':<24} {'eager':>12} {'lowtide':>12}")
    for name, left, right, remark in rows:
        print(f"{name:<24} {left:>12} {right:>12}   {remark}".rstrip())


def failure(eager, lowtide, fallback_reason):
    """Why the job failed, or None."""
    if fallback_reason:
        return f"the module ran in PyTorch: {fallback_reason}"
    worst = max(differences(eager, lowtide)[:COMPARED_STEPS])
    if not worst <= TOLERANCE:  # so written that a NaN fails
        return f"the losses of the first {COMPARED_STEPS} steps differ by {worst:.1e}, more than {TOLERANCE:.0e}"
    return None
