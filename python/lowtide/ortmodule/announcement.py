"""What users are told once, when the first training graph is ready: the feature table and the memory optimizer's
notices, through the "lowtide" logger."""

import logging

from lowtide.errors import Error

from .feature_table import feature_table
from .options import LogLevel, is_first_rank

logger = logging.getLogger("lowtide")


def announce(agent, sizes, options):
    """On the first rank, below INFO on all. A report that fails is logged; the training that it is about goes on."""
    if options.log_level >= LogLevel.INFO and not is_first_rank():
        return
    try:
        _announce(agent, sizes, options.log_level)
    except Error as error:
        logger.warning("the feature table cannot be made: %s", error)


def _announce(agent, sizes, log_level):
    for notice in memory_notices(agent):
        logger.warning("%s", notice)
    # Savings take analysis, and peaks take plans: only where they show.
    stat = agent.memory_stat(sizes=sizes) if log_level < LogLevel.WARNING else None
    logger.warning("%s", feature_table(agent, sizes, log_level, stat))
    if log_level <= LogLevel.INFO and agent.memory.on:
        for plan, requested, found, applied in agent.session.memory_outcomes():
            wanted = "all" if requested < 0 else requested
            logger.info("memory optimizer: %s: requested %s, applied %s of %s", plan, wanted, applied, found)
    if log_level <= LogLevel.DEVINFO:
        logger.info("%s\n%s", stat["insight"], stat["summary"])


def memory_notices(agent):
    if agent.memory.on:
        yield from agent.session.memory_notices()
    if agent.captured.checkpoints:
        by_level = "ORTMODULE_MEMORY_OPT_LEVEL=1 recomputes per layer"
        yield f"gradient checkpointing inside the model is inlined; {by_level}" + (
            " and is set" if agent.memory.level == 1 else ""
        )
