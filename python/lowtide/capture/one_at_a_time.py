"""What one thread does at a time: export, for which PyTorch is patched and the module's parameters are fake ones, and
Dynamo's compilation, which an export of another thread is in the way of."""

import threading

from torch._dynamo.convert_frame import compile_lock


class _OneAtATime:
    """Dynamo's lock first, always: it is held where a backend, or a module that Dynamo runs, comes to an export."""

    def __init__(self):
        self._lock = threading.RLock()

    def __enter__(self):
        compile_lock.acquire()
        try:
            self._lock.acquire()
        except BaseException:
            compile_lock.release()
            raise

    def __exit__(self, *_):
        self._lock.release()
        compile_lock.release()


exclusive = _OneAtATime()
