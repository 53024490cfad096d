"""The best plan of a small step by CP-SAT, from Session.step_model alone: it shares nothing with our search.

The plans: of each optional value whether it is kept, whole or packed; a node of forward runs again at most once, in the
slot before a node of backward, and whoever reads what it makes from there on reads that. As our plans, but for what is
relaxed here:

- a node may run again in any slot from YieldOp to its first reader, not just right before that reader;
- while a node runs again, what other nodes made in the same slot does not count, but for what it reads;
- what a node takes over is taken over wherever a plan exists in which nobody reads it later;
- what forward makes for backward alone takes no bytes in forward, unless it is kept;
- what is packed is whole only from the first node of backward that reads it to the last, and packed only from behind
  its last reader in forward to that first one.

Each lets the optimum be lower than the best of our plans: a gap to it is an upper bound of the true one.
"""

import json

from ortools.sat.python import cp_model


class Step:
    def __init__(self, session, sizes):
        model = json.loads(session.step_model(sizes))
        self.values, self.nodes, self.fixed = model["values"], model["nodes"], model["fixed"]
        self.yield_at, self.other_bytes = model["yield"], model["other_bytes"]
        self.forward = range(min(self.yield_at, len(self.nodes)))
        self.backward = range(self.yield_at + 1, len(self.nodes))
        self.once_ms = sum(node["ms"] for node in self.nodes)
        self.readers = [[] for _ in self.values]
        for position, node in enumerate(self.nodes):
            for value in node["reads"]:
                self.readers[value].append(position)
        self.runs_in_forward = self._find_runs()

    def _find_runs(self):
        """By node of forward: whether forward itself needs it."""
        runs, needed = {}, set()
        for position in reversed(range(self.yield_at + 1)):
            node = self.nodes[position]
            runs[position] = node["is_kept_alive"] or not node["makes"] or any(v in needed for v in node["makes"])
            if runs[position]:
                needed.update(node["reads"])
        return runs

    def is_optional(self, value):
        return self.values[value]["is_optional"]


class _Solver:
    def __init__(self, step, budget_bytes):
        self.step, self.model = step, cp_model.CpModel()
        new = self.model.new_bool_var
        self.keep, self.pack, self.again, self.done, self.alive = {}, {}, {}, {}, {}
        for number, value in enumerate(step.values):
            if value["is_optional"]:
                self.keep[number], self.pack[number] = new(""), 0
                if value["packed_bytes"]:
                    self.pack[number] = new("")
                    self.model.add(self.keep[number] + self.pack[number] <= 1)
        for position in step.forward:
            makes = step.nodes[position]["makes"]
            if not any(step.is_optional(v) and step.values[v]["may_run_again"] for v in makes):
                continue
            self.again[position] = new("")
            done = {step.yield_at: 0}
            for slot in step.backward:
                done[slot] = new("")
                self.model.add(done[slot] >= done[slot - 1])
            self.model.add(done[step.backward[-1]] == self.again[position])
            self.done[position] = done
        for position in step.forward:
            if not step.runs_in_forward[position]:
                self.alive[position] = new("")
        self._require_readers()
        self._require_first_runs()
        self._hold(budget_bytes)
        # In integers: ns.
        cost = [
            (round(step.nodes[p]["ms"] * 1e6), ran) for table in (self.again, self.alive) for p, ran in table.items()
        ]
        cost += [(round(step.values[v]["packing_ms"] * 1e6), packed) for v, packed in self.pack.items()]
        self.model.minimize(sum(ns * ran for ns, ran in cost))
        self.always_ms = step.once_ms - sum(step.nodes[p]["ms"] for p in self.alive)

    def _there(self, value, slot, *conditions):
        """Under the conditions, the value is kept or made again by this slot."""
        producer = self.step.values[value]["producer"]
        options = [self.keep[value], self.pack[value]]
        if producer in self.done:
            options.append(self.done[producer][slot])
        self.model.add(sum(options) >= 1).only_enforce_if(*conditions)

    def _require_readers(self):
        step = self.step
        for value in self.keep:
            for position in step.readers[value]:
                if position > step.yield_at:
                    self._there(value, position)
        for position, done in self.done.items():
            for value in step.nodes[position]["reads_again"]:
                if value in self.keep:
                    for slot in step.backward:
                        self._there(value, slot, done[slot])

    def _require_first_runs(self):
        """What only backward needs runs in forward where it is kept, or for what is."""
        step = self.step
        for position, ran in self.alive.items():
            for value in step.nodes[position]["makes"]:
                if value not in self.keep:
                    continue
                self.model.add(ran >= self.keep[value] + self.pack[value])
                for reader in step.readers[value]:
                    if reader in self.alive:
                        self.model.add(ran >= self.alive[reader])

    def _both(self, a, b):
        """At least a AND b (an objective and limits push it down)."""
        both = self.model.new_bool_var("")
        self.model.add(both >= a + b - 1)
        return both

    def _needed_later(self, value, slot):
        """Terms, one of which is 1 where a node that runs again behind this slot reads the value."""
        return [
            self.again[p] - self.done[p][slot]
            for p in self.done
            if value in self.step.nodes[p]["reads_again"] and slot in self.done[p]
        ]

    def _live(self, value, at):
        """Bytes of the value while node `at` runs: a constant, or a term."""
        step, each = self.step, self.step.values[value]
        size, made = each["bytes"], each["producer"]
        if size == 0 or made < 0:
            return 0
        last = max(step.readers[value], default=made)
        if not each["is_optional"]:
            return size if made <= at <= max(last, each["held_until"]) else 0
        if at <= step.yield_at:
            if made <= at <= each["held_until"]:
                return size
            needed = made if made not in self.alive else -1
            for reader in step.readers[value]:
                if reader <= step.yield_at and step.runs_in_forward[reader]:
                    needed = max(needed, reader)
            if made <= at <= needed:
                return size
            return size * self.keep[value] + each["packed_bytes"] * self.pack[value] if at >= made else 0
        readers = [reader for reader in step.readers[value] if reader > step.yield_at]
        packed = 0
        if readers and at <= last:
            packed = (each["packed_bytes"] if at < min(readers) else size) * self.pack[value]
        present = self.keep[value]
        if made in self.done:
            present = self.model.new_bool_var("")
            self.model.add(present >= self.keep[value])
            self.model.add(present >= self.done[made][at] - self.keep[value] - self.pack[value])
        if at <= last:
            return size * present + packed
        later = self._needed_later(value, at)
        if not later:
            return 0
        live = self.model.new_bool_var("")
        for term in later:
            self.model.add(live >= present + term - 1)
        return size * live

    def _taken_over(self, at):
        """The most that node `at` may take over at its first run."""
        step, possible = self.step, {}
        for to, source in step.nodes[at]["takeovers"]:
            if step.values[source]["producer"] == at or step.values[source]["held_until"] > at:
                continue
            later = [r for r in step.readers[source] if r > at]
            if any(r <= step.yield_at and step.runs_in_forward[r] for r in later):
                continue
            if at > step.yield_at and later:
                continue
            possible.setdefault(to, []).append(source)
        terms = []
        for to, sources in possible.items():
            size = step.values[to]["bytes"]
            is_decided = len(sources) == 1 and sources[0] in self.keep and at < step.yield_at
            terms.append(size * (1 - self.keep[sources[0]]) if is_decided else size)
        return sum(terms)

    def _hold(self, budget):
        step, live = self.step, {}
        for at in range(len(step.nodes)):
            live[at] = [self._live(value, at) for value in range(len(step.values))]
            fixed = sum(size for first, last, size in step.fixed if first <= at <= last)
            total = sum(live[at]) + fixed + step.nodes[at]["scratch"] - self._taken_over(at)
            ran = [self.alive[at]] if at in self.alive else []
            if not isinstance(total, int):
                self.model.add(total <= budget).only_enforce_if(*ran)
            elif total > budget and not ran:
                self.model.add_bool_or([])  # no plan
        for position, done in self.done.items():
            for slot in step.backward:
                self._hold_again(position, slot, self._both(done[slot], 1 - done[slot - 1]), live, budget)

    def _hold_again(self, position, slot, runs, live, budget):
        """What is there before the slot and needed behind it, what the node reads, and what it makes."""
        step, node = self.step, self.step.nodes[position]
        total = node["scratch"] + node["copies"] + sum(size for first, last, size in step.fixed if first < slot <= last)
        taken = {to: source for to, source in reversed(node["takeovers"])}
        total += sum(step.values[v]["bytes"] for v in node["makes"] if v not in taken)
        total += sum(step.values[v]["bytes"] for v in node["reads_again"] if v in self.keep)
        for value, each in enumerate(step.values):
            if value in node["makes"] or value in node["reads_again"] or each["bytes"] == 0:
                continue
            if each["is_optional"]:
                # Kept, and read by this slot's node or behind it.
                if max(step.readers[value], default=-1) >= slot:
                    total += each["bytes"] * self.keep[value] + each["packed_bytes"] * self.pack[value]
            elif each["producer"] < slot <= max([*step.readers[value], each["held_until"]]):
                total += each["bytes"]
        self.model.add(total <= budget).only_enforce_if(runs)


def least_ms(step, budget_bytes, work=3):
    """The least predicted time of a step whose arena keeps within the budget, or, where so much work (CP-SAT's
    measure, about seconds) does not prove it, a lower bound of it. None: no plan does."""
    solver = _Solver(step, budget_bytes)
    search = cp_model.CpSolver()
    search.parameters.max_deterministic_time = work
    search.parameters.num_workers = 1
    search.parameters.random_seed = 1
    status = search.solve(solver.model)
    if status == cp_model.INFEASIBLE:
        return None
    return solver.always_ms + search.best_objective_bound / 1e6
