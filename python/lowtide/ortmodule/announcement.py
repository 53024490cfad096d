"""What users are told about graphs: the feature table with the first one, and each session's details in the log of the
engine."""

from lowtide.errors import Error, InternalError, OutOfMemory
from lowtide.log import LogLevel, engine, is_first_rank, logger

from .feature_table import feature_table, lowered_text, pieces_table


def announce(agent, sizes, options):
    """On the first rank, below INFO on all. A report that fails is logged; the training that it is about goes on."""
    if not _is_told(agent.training, options.log_level):
        return
    try:
        _announce(agent, sizes, options.log_level)
    except InternalError as error:
        agent.bugs.tell(error)
    except OutOfMemory:
        pass  # the step will say it
    except Error as error:
        logger.warning("the feature table cannot be made: %s", error)


def announce_pieces(step, options):
    """The same of a module in pieces: StepOfPieces."""
    training = any(one.agent.training for one in step.in_engine)
    if _is_told(training, options.log_level):
        say = logger.warning if training else logger.info
        say("%s", pieces_table(step, "training" if training else "inference"))


def _is_told(training, log_level):
    quietest = LogLevel.WARNING if training else LogLevel.INFO
    return log_level <= quietest and (log_level < LogLevel.INFO or is_first_rank())


def tells_savings(log_level):
    """Whether the feature table of a graph that trains has rows for what memory plans save."""
    return log_level < LogLevel.WARNING


def _announce(agent, sizes, log_level):
    # Savings take analysis, and peaks take plans: only where they show.
    wanted = tells_savings(log_level) and agent.training
    stat = agent.memory_stat(sizes=sizes) if wanted else None
    for notice in memory_notices(agent, sizes, stat):
        logger.warning("%s", notice)
    if agent.labels is not None and (hint := agent.labels.hint(agent.leaves_rows_out)):
        logger.info("%s", hint)
    # An evaluation between steps is not worth a second table in everybody's log.
    say = logger.warning if agent.training else logger.info
    say("%s", feature_table(agent, sizes, log_level, stat))
    if log_level <= LogLevel.INFO and agent.memory.on:
        for plan, requested, found, applied in agent.session.memory_outcomes():
            count = "all" if requested < 0 else requested
            logger.info("memory optimizer: %s: requested %s, applied %s of %s", plan, count, applied, found)
    if log_level <= LogLevel.DEVINFO and stat is not None:
        logger.info("%s\n%s", stat["insight"], stat["summary"])


def announce_session(agent, log_level):
    """A new session, for those who look into the engine."""
    if log_level > LogLevel.DEVINFO:
        return
    report = agent.session.report
    stages = ", ".join(f"{name} {time:.3f}s" for name, time in report["seconds"].items())
    mode = "training" if agent.training else "inference"
    engine.info("a session for %s: %s; %s", mode, lowered_text(report), stages)
    for stage in ("captured", "lowered", "training", "program"):
        engine.debug("%s graph:\n%s", stage, _Text(agent.session, f"{stage}_text"))
    engine.debug("kernels:\n%s", _Text(agent.session, "explain"))


class _Text:
    """A text of the session, made where a record is shown."""

    def __init__(self, session, name):
        self._text = getattr(session, name)

    def __str__(self):
        return self._text()


def memory_notices(agent, sizes, stat):
    if agent.memory.notice:
        yield agent.memory.notice
    if agent.memory.on and stat is not None:
        yield from stat["notices"]
    elif agent.memory.on:
        yield from agent.session.memory_notices()
        if raised := agent.session.raised_peak(agent.symbol_values(sizes)):
            yield raised
    if agent.captured.checkpoints:
        by_level = f"ORTMODULE_MEMORY_OPT_LEVEL={agent.memory.level or 1} recomputes per layer"
        is_set = " and is set" if agent.memory.level else ""
        yield f"gradient checkpointing inside the model is inlined; {by_level}{is_set}"
