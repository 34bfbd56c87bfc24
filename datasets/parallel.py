"""Work on many items with all cores, in order, holding only a few of them at a time."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores this process may use: its affinity where the system tells, else all."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], *, workers: int | None = None
) -> Generator[Result, None, None]:
    """Yield ``function(item)`` in the order of items, from threads (Pillow releases the GIL).

    ``items`` is consumed as results are: at most four times ``workers`` are under way. Closing
    the iterator, or an exception of ``function``, cancels what has not begun.
    """
    count = workers or available_cores()
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(count, thread_name_prefix="datasets") as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) >= 4 * count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
