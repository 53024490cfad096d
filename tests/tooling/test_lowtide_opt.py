"""lowtide-opt: text in, passes, text out; mistakes on standard error with exit code 1."""

import subprocess
from pathlib import Path

OPT = Path(__file__).resolve().parents[2] / "build" / "release" / "tools" / "lowtide-opt"
GRAPH = """graph @g(%x: f32[n] input) {
  %one: f32[] = Constant(dtype=f32, value=1.0)
  %a: f32[n] = Exp %x
  %b: f32[n] = Mul %a, %one
  %c: f32[n] = Abs %b
  return %c output
}
"""


def opt(*arguments, text=GRAPH):
    return subprocess.run([OPT, *arguments], input=text, capture_output=True, text=True)


def test_without_passes_the_text_comes_back():
    done = opt("-")
    assert (done.returncode, done.stdout, done.stderr) == (0, GRAPH, "")


def test_passes_run_in_the_given_order():
    done = opt("--passes=fold,dce", "--verify-types", "--print-after-all", "-")
    assert "%c: f32[n] = Abs %a" in done.stdout and "Constant" not in done.stdout
    assert done.stderr.index("// after fold") < done.stderr.index("// after dce")
    assert "Constant" in opt("--passes=fold,dce", "--disable=dce", "-").stdout
    assert "Constant" in opt("--passes=fold,dce", "--stop-after=fold", "-").stdout


def test_the_whole_way_to_a_training_graph():
    text = GRAPH.replace("input)", "input grad)")
    done = opt("--passes=lower,forward,gradient,training", "--verify-types", "-", text=text)
    assert done.returncode == 0, done.stderr
    assert "YieldOp" in done.stdout and "gradient %x" in done.stdout


def test_every_pass_is_listed():
    names = opt("--list").stdout.split()
    assert names[:4] == ["lower", "forward", "gradient", "training"] and {"fold", "cse", "dce"} < set(names)


def test_mistakes_are_named():
    for arguments, text, message in (
        (["-"], GRAPH.replace("Abs", "Abz"), "5:16: expected an op, found 'Abz', which is none"),
        (["-"], GRAPH.replace("%a, %one", "%a"), "graph @g breaks I4: %b = Mul has 1 operands, expected 2"),
        (["--passes=fould", "-"], GRAPH, "no pass is called 'fould'"),
        (["--passes=fold", "--disable=fould", "-"], GRAPH, "no pass is called 'fould'"),
        (["--what", "-"], GRAPH, "unknown argument '--what'"),
        (["/no/such/file"], GRAPH, "cannot read /no/such/file"),
        ([], GRAPH, "no file"),
    ):
        done = opt(*arguments, text=text)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("lowtide-opt: ") and message in done.stderr
