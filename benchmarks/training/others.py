"""What other processes had of the machine's processors during a measurement."""

import os
import time


class Others:
    """with Others() as others: …; others.share: of the machine's processors that other processes had meanwhile.

    Seconds of processors: `total` of all there were, `busy` of those that worked, `own` of this process.
    """

    def __enter__(self):
        self._begin = self._read()
        return self

    def __exit__(self, *_):
        self.total, self.busy, self.own = (now - before for now, before in zip(self._read(), self._begin, strict=True))
        self.share = share_of_others(self.total, self.busy, self.own)

    @staticmethod
    def _read():
        with open("/proc/stat") as file:
            ticks = [int(field) / os.sysconf("SC_CLK_TCK") for field in file.readline().split()[1:9]]
        return sum(ticks), sum(ticks) - ticks[3] - ticks[4], time.process_time()


def share_of_others(total, busy, own):
    return max(0.0, busy - own) / max(total, 1e-9)
