"""A directory that one process at a time may write to, on any system."""

import contextlib
import os
from pathlib import Path

import filelock

from tokenfield.errors import InputError, RunError

LOCK = ".lock"
#: Seconds to wait for a lock that somebody only looks at (`is_locked`).
PATIENCE_SECONDS = 0.5


class DirectoryLock:
    """Held until `release`, or until the process ends, by kill -9 too.

    The lock file stays open while the lock is held, so that no other file can have its number: a directory
    that was removed, and perhaps made again by somebody else, is noticed by `require_held`.

    Args:
        directory: what is locked.
        name: of the argument that the directory came from.
        user: who else may be there, the subject of the sentence: "another process is writing to".
    """

    def __init__(self, directory: Path, name: str, user: str):
        self.directory = directory
        self._lock = filelock.FileLock(directory / LOCK, timeout=PATIENCE_SECONDS, thread_local=False)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise InputError(f"`{name}` must not be in use, but {user} {directory}") from None
        self._identity = _identity(directory / LOCK)

    def require_held(self) -> None:
        """Raise unless the directory at the path is still the one that was locked."""
        if self._identity is None or _identity(self.directory / LOCK) != self._identity:
            again = "was removed and made again" if self.directory.exists() else "was removed"
            raise RunError(
                f"stopped writing to {self.directory}: the directory {again} by somebody else during the run"
            )

    def release(self) -> None:
        """Let others in."""
        with contextlib.suppress(OSError):  # a directory that is gone needs no release
            self._lock.release(force=True)


def is_locked(directory: Path) -> bool:
    """Whether somebody holds the lock of a directory now; False where this user may not ask."""
    if not (directory / LOCK).is_file():
        return False
    try:
        with filelock.FileLock(directory / LOCK, timeout=0):
            return False
    except filelock.Timeout:
        return True
    except OSError:
        return False


def _identity(file: Path) -> tuple[int, int] | None:
    """What tells a file from every other that exists; None if it does not."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
