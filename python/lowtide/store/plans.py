"""ORTMODULE_CACHE_DIR, second half: what was planned for a graph under the options of a session (src/session/
stored_plan.h), so that a second start plans nothing.

A file is found by a hash of the graph's text, of all options, of lowtide's build and the machine; the engine checks
the same once more, and that the program in it keeps within its buffers.
"""

import hashlib
import json
import logging
import os

from lowtide._lowtide import Session
from lowtide.errors import Error, InternalError, OutOfMemory
from lowtide.guards import build
from lowtide.log import logger

from . import files
from .prices import measured_prices

_MAGIC = "plan 1"


def planned_session(module, captured, meeting=None, **options):
    """A Session of the captured graph: from a stored plan where there is one, else planned, and stored. `meeting`: of
    the processes that train the module together, a lowtide.distributed.Meeting. Under a budget the first of them seeks
    plans for those that have the same graph, by its own prices of steps: theirs may differ, and so might plans."""
    options = {"prices": measured_prices(), **options}
    if meeting is None or not (options.get("memory_budget") or options.get("memory_budget_fraction")):
        return _planned(module, captured, options)
    session = None

    def make():
        nonlocal session
        session = _planned(module, captured, options)
        sizes = _sizes_of(session, captured)
        try:
            session.memory(sizes)  # seeks plans
            return json.dumps([options["prices"], session.stored_plan(sizes)])
        except Error:  # a call will tell
            return ""

    text = meeting.made_by_first(_key(captured.graph.text(), {**options, "prices": ""}), make)
    if session is None and text:
        options["prices"], text = json.loads(text)
        session = _session_of(text, captured, options, "the plan of the first process") if text else None
        if session is not None:
            logger.info("the plan of %s is that of the first process", type(module).__name__)
    return session or _planned(module, captured, options)


def _planned(module, captured, options):
    """Without other processes."""
    folder = files.folder()
    if not folder:
        return Session(captured.graph, **options)
    name = type(module).__name__.lower()
    path = os.path.join(folder, f"{name}-{_key(captured.graph.text(), options)}.plan")
    session = _stored_session(path, captured, options)
    if session is None:
        session = Session(captured.graph, **options)
        if _keeps_its_budget(session, captured):
            _store(path, session, captured)
    else:
        logger.info("the plan of %s is read from %s", type(module).__name__, path)
    return session


def _keeps_its_budget(session, captured):
    """Seeks plans under a budget, for the sizes of the example. A stored graph's are not those of the call, and a share
    of their peak may be too little where the call's is not."""
    try:
        session.memory(_sizes_of(session, captured))
        return True
    except OutOfMemory as error:
        logger.info("the plan is not cached: %s", error)
        return False


def _key(graph_text, options):
    parts = [graph_text, repr(sorted(options.items())), repr(build())]
    config = options.get("memory_config", "")
    if os.path.isfile(config):  # it asks for what it holds
        with open(config, encoding="utf-8", errors="replace") as file:
            parts.append(file.read())
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _stored_session(path, captured, options):
    if not files.is_usable(path):
        return None
    body = files.read(path, _MAGIC)
    if body is None:
        logger.warning("%s is ignored: it is damaged or no plan", path)
        return None
    return _session_of(body.decode(errors="replace"), captured, options, path)


def _session_of(text, captured, options, where):
    """Of a stored plan; None where it does not fit."""
    try:
        session = Session(captured.graph, **options, stored_plan=text)
        session.memory(_sizes_of(session, captured))  # at sizes that it was made for, its steps fit together
        return session
    except (Error, ValueError, KeyError) as error:
        logger.log(_level_of(error), "%s is ignored: %s", where, error)
        return None


def _sizes_of(session, captured):
    """Of the example that was captured, in the order of the session's symbols."""
    dims, sizes = captured.imported.sizes.dims, captured.exported.sizes
    return [sizes[index][position] for index, position in map(dims.__getitem__, session.symbols)]


def _store(path, session, captured):
    """A failure is logged, and costs the next start some planning."""
    try:
        if text := session.stored_plan(_sizes_of(session, captured)):
            files.write(path, _MAGIC, text.encode())
        else:
            logger.info("the plan is not cached: sizes in it come from data")
    except (Error, OSError) as error:
        logger.log(_level_of(error), "a plan cannot be cached: %s", error)


def _level_of(error):
    return logging.ERROR if isinstance(error, InternalError) else logging.WARNING
