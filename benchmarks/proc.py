"""What processes and the machine have used, read from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_FIELDS = slice(11, 13)
"""utime and stime, counted behind the command's closing bracket (proc_pid_stat(5), fields 14 and 15)."""


class Used(NamedTuple):
    """CPU seconds and context switches of a process, over all its threads."""

    cpu: float
    switches: int

    def since(self, before: Used) -> Used:
        """Return the difference."""
        return Used(self.cpu - before.cpu, self.switches - before.switches)


def used(pid: int) -> Used:
    """Read what a process has used so far; context switches of ended threads are missing."""
    return Used(_cpu(pid), _switches(pid))


def machine_cpu() -> float:
    """Read the CPU seconds of everything that runs on the machine; idle, waiting and stolen time do not count."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")
    values = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1 : len(names) + 1]
    ticks = dict(zip(names, map(int, values), strict=True))
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) / _TICKS


def cpu_of(pids: Iterable[int]) -> float:
    """Add up the CPU seconds of processes."""
    return sum(_cpu(pid) for pid in pids)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[_CPU_FIELDS])) / _TICKS


def _switches(pid: int) -> int:
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            lines = status.read_text(encoding="utf-8").splitlines()
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
        total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total


def resident_mb(pid: int) -> float:
    """Read the memory of another process that is in RAM, in megabytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def resident_bytes() -> int:
    """Read the memory that this process has in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
