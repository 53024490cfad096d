"""Every environment variable that lowtide reads, and those of ONNX Runtime's ORTModule that mean nothing here."""

import difflib
import functools
import os
from dataclasses import dataclass

from lowtide._lowtide import instruction_set
from lowtide.log import logger


@dataclass(frozen=True)
class Variable:
    default: str
    meaning: str  # or, of one without an effect, why it has none
    read: bool = True


_CUDA_ONLY = "there are no CUDA kernels in this build"
_NO_TRITON = "there are no Triton kernels in this build"

VARIABLES = {
    "ORTMODULE_LOG_LEVEL": Variable(
        "WARNING", "VERBOSE, DEVINFO, INFO, WARNING, ERROR or FATAL; wins over DebugOptions"
    ),
    "ORTMODULE_FALLBACK_POLICY": Variable(
        "the four FALLBACK_UNSUPPORTED_…", "which failures PyTorch takes over: names joined by |"
    ),
    "ORTMODULE_FALLBACK_RETRY": Variable("0", "1, true or yes: every call tries the engine again after a fallback"),
    "LOWTIDE_PIECES": Variable(
        "1", "0: a module that has no graph as a whole runs in PyTorch, not in pieces found by torch.compile's Dynamo"
    ),
    "ORTMODULE_SKIPCHECK_POLICY": Variable(
        "", "SKIP_CHECK_… names joined by |: accepted, never needed, checks are always on, and cheap"
    ),
    "ORTMODULE_JSON_CONFIG_PATH": Variable("", "the file that experimental.json_config.load_from_json reads"),
    "ORTMODULE_SAVE_ONNX_PATH": Variable("the working directory", "the folder that save_onnx writes to"),
    "ORTMODULE_CACHE_DIR": Variable(
        "",
        "the folder of captured graphs and plans: a later process skips both; read only where nobody else can write; "
        "and of what `lowtide calibrate` measured, which without it is in the user's cache folder",
    ),
    "ORTMODULE_MEMORY_OPT_LEVEL": Variable(
        "0", "1: recompute inside each layer; 2: with compromises; auto: the knee of all plans"
    ),
    "ORTMODULE_MEMORY_OPT_CONFIG": Variable(
        "", "plans joined by commas, or the path of a JSON file with a list of them"
    ),
    "ORTMODULE_MEMORY_OPT_PROBE_CONFIG": Variable("1:0", "level:boundary of the search for plans"),
    "LOWTIDE_MEMORY_BUDGET": Variable(
        "", "the most that a training step may need: 600MiB, 0.6GB, bytes, or a part of the plan without (75%)"
    ),
    "ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT": Variable(
        "1", "0: all gradients reach PyTorch when backward has ended, not bucket by bucket while it runs"
    ),
    "ORTMODULE_ENABLE_ZERO_STAGE3": Variable(
        "1", "0: models whose parameters DeepSpeed's ZeRO stage 3 has partitioned run in PyTorch"
    ),
    "ORTMODULE_ENABLE_COMPUTE_OPTIMIZER": Variable("1", "0: nothing is computed on fewer rows than the model says"),
    "ORTMODULE_ENABLE_SPARSE_OPTIMIZER": Variable(
        "1", "0: rows without a label are computed too; 1: they are left out where less than 90 % have one"
    ),
    "ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER": Variable(
        "1",
        "0: padding is computed like text; 1: it is left out where a mask hides more than 10 %, with the labels above",
    ),
    "ORTMODULE_PRINT_INPUT_DENSITY": Variable(
        "0", "1: the log has, at INFO, how many tokens and labels of each call count"
    ),
    "ORTMODULE_ENABLE_CUSTOM_AUTOGRAD": Variable("1", "0: models with a custom autograd.Function run in PyTorch"),
    "LOWTIDE_PROPAGATE_CAST_OPS_LEVEL": Variable("1", "cast propagation: 0 only over allowed ops, 1, or 2 over more"),
    "LOWTIDE_PROPAGATE_CAST_OPS_ALLOW": Variable("", "ops that casts may move over at any level, joined by commas"),
    "LOWTIDE_GUARD": Variable(
        "0",
        "1: checks the arena at every step of a plan: the owner of what it touches, canaries of buffers that end",
    ),
    "LOWTIDE_DISABLE_PASSES": Variable(
        "",
        "names of graph passes, of `schedule_order` and of `default_rematerialisation` to leave out, joined by commas",
    ),
    "LOWTIDE_DISABLE_KERNELS": Variable("", "names of kernels or providers not to use, joined by commas"),
    "LOWTIDE_ISA": Variable(
        "the best of the CPU",
        "portable, avx2, avx512, avx512_bf16 or amx: the widest instructions of kernels; read once a process",
    ),
    "LOWTIDE_RAISE_BUGS": Variable("0", "1: a bug of lowtide's (InternalError) is raised, not left to PyTorch"),
    "LOWTIDE_TEST_FAULT": Variable(
        "",
        "for tests, VALUE:FACTOR: a kernel that computes wrongly, its result of that name is multiplied; or an ATen "
        "call, as `aten::gelu.default`: its lowering fails; "
        "refused by the package that is installed, only builds of `./dev` can do it",
    ),
    # ---- of ORTModule, without effect
    "ORTMODULE_ONNX_OPSET_VERSION": Variable("", "save_onnx writes files of one opset", read=False),
    "ORTMODULE_MEMORY_OPT_PROBE_RECOMPUTE_LEVEL": Variable(
        "", "its later name is ORTMODULE_MEMORY_OPT_PROBE_CONFIG", read=False
    ),
    "ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT": Variable(
        "", "an export never runs on the model's values, so nothing need be copied", read=False
    ),
    "ORTMODULE_DO_DEEPCOPY_BEFORE_MODEL_EXPORT": Variable(
        "", "an export never runs on the model's values, so nothing need be copied", read=False
    ),
    "ORTMODULE_CONV_ALGO_SEARCH": Variable("", _CUDA_ONLY, read=False),
    "ORTMODULE_PRINT_MEMORY_STATS": Variable(
        "", "the peak is planned: see the feature table and ORTModule.memory_report()", read=False
    ),
    "ORTMODULE_ALLOW_AUTOGRAD_CHECKPOINT": Variable(
        "", "checkpoints are inlined; what to recompute is the memory optimizer's choice", read=False
    ),
    "ORTMODULE_USE_TRITON": Variable("", _NO_TRITON, read=False),
    "ORTMODULE_TRITON_CONFIG_FILE": Variable("", _NO_TRITON, read=False),
    "ORTMODULE_TRITON_DEBUG": Variable("", _NO_TRITON, read=False),
    "ORTMODULE_ENABLE_TUNING": Variable("", "kernels are chosen by a table, never by a timing", read=False),
    "ORTMODULE_MAX_TUNING_DURATION_MS": Variable("", "kernels are chosen by a table, never by a timing", read=False),
    "ORTMODULE_TUNING_RESULTS_PATH": Variable("", "kernels are chosen by a table, never by a timing", read=False),
    "ORTMODULE_USE_FLASH_ATTENTION": Variable("", _CUDA_ONLY + "; attention is fused without asking", read=False),
    "ORTMODULE_USE_EFFICIENT_ATTENTION": Variable("", _CUDA_ONLY + "; attention is fused without asking", read=False),
}


def read(name):
    """The variable's text without spaces around it, empty where it is not set."""
    assert VARIABLES[name].read, name
    return os.environ.get(name, "").strip()


def user_cache_folder():
    """Where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "lowtide")


def is_on(name):
    return read(name).lower() in ("1", "true", "yes")


def set_here():
    """{name: text} of the variables of lowtide's that are set."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def set_again(variables):
    """For this process, as they were set in another one."""
    os.environ.update(variables)


def is_on_unless_off(name):
    """Of a switch whose default is 1."""
    return not read(name) or is_on(name)


def custom_functions_run():
    return is_on_unless_off("ORTMODULE_ENABLE_CUSTOM_AUTOGRAD")


def gradients_leave_by_bucket():
    return is_on_unless_off("ORTMODULE_ENABLE_MEM_EFFICIENT_GRAD_MGMT")


def compute_optimizer():
    return is_on_unless_off("ORTMODULE_ENABLE_COMPUTE_OPTIMIZER")


def label_sparsity():
    return compute_optimizer() and is_on_unless_off("ORTMODULE_ENABLE_SPARSE_OPTIMIZER")


def embedding_sparsity():
    return is_on_unless_off("ORTMODULE_ENABLE_EMBEDDING_SPARSE_OPTIMIZER")


def prints_input_density():
    return is_on("ORTMODULE_PRINT_INPUT_DENSITY")


def names_in(name):
    """Of a list joined by commas."""
    return [part for part in read(name).split(",") if part]


def notices(environment):
    """One line for each variable that is set in vain: of ORTModule's, or of no name that is known."""
    for name in sorted(environment):
        if name in VARIABLES:
            if not VARIABLES[name].read:
                yield f"{name} is set and has no effect in lowtide: {VARIABLES[name].meaning}"
        elif name.startswith(("ORTMODULE_", "LOWTIDE_")):
            near = difflib.get_close_matches(name, [known for known in VARIABLES if VARIABLES[known].read], 1)
            yield f"{name} is set and is no variable of lowtide's" + (f"; did you mean {near[0]}?" if near else "")
    if environment.get("ORTMODULE_SKIPCHECK_POLICY", "").strip():
        yield "ORTMODULE_SKIPCHECK_POLICY is set and has no effect in lowtide: checks are always on, and cheap"


def announce():
    """Warns of what is set in vain, once a process."""
    for notice in notices(os.environ):
        _once(notice)
    asked, taken = read("LOWTIDE_ISA"), instruction_set()
    if asked not in ("", taken):
        _once(f"LOWTIDE_ISA is {asked}, this CPU has {taken}: {taken} is taken")


@functools.cache
def _once(notice):
    logger.warning("%s", notice)


def partitioned_parameters_are_gathered():
    return is_on_unless_off("ORTMODULE_ENABLE_ZERO_STAGE3")
