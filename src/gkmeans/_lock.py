"""One process at a time: a lock on a file, where the system has locks of files."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ._files import FileError

_NONE = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}
"""Errors of file systems that have no locks."""


class Lock:
    """A file that is held from now until ``release``, or to the end of the process.

    ``locked`` is False where the system has no such locks, and nothing keeps others away.
    """

    def __init__(self, path: Path, refusal: str) -> None:
        self.path, self.locked, self._process = path, False, os.getpid()
        self._file = open(path, "ab")  # noqa: SIM115  held until release
        try:
            self._acquire()
        except BlockingIOError as error:
            self._file.close()
            raise FileError(refusal) from error
        except BaseException:
            self._file.close()
            raise

    def _acquire(self) -> None:
        with contextlib.suppress(ImportError):  # a system without such locks
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _NONE:
                    raise
            else:
                self.locked = True

    def holds(self) -> bool:
        """Whether this process, not the one it was forked from, holds the file that is there now."""
        if self._process != os.getpid() or self._file.closed:
            return False
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let others have the file. Processes forked meanwhile hold it open, so closing it is not enough."""
        if self._process == os.getpid() and not self._file.closed:
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()
