"""The machine this runs on: its name, its boot, how busy it is. On the way of every tick, so it imports next to nothing."""

import os


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
        return file.read().strip()


def host_name() -> str:
    return os.uname().nodename


def machine_load() -> tuple[float | None, int | None]:
    """The load of the last minute, and the memory that is free to use in KiB."""
    memory = None
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    memory = int(line.split()[1])
                    break
        return os.getloadavg()[0], memory
    except (OSError, ValueError, IndexError):
        return None, memory
