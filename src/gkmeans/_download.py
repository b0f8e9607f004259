"""Files from the network: resumed where a transfer was cut, checked before they are put in place."""

from __future__ import annotations

import contextlib
import ftplib
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ._files import FileError
from ._progress import logger

TIMEOUT = 30.0
ROUNDS = 2  # how often each mirror is tried
_BLOCK = 2**18


@dataclass(frozen=True)
class Source:
    """A published file: its name, mirrors, bytes and checksum; of a tar, the members wanted and their bytes."""

    name: str
    urls: tuple[str, ...]
    size: int
    checksum: str  # "sha256:…" or "md5:…"
    members: tuple[tuple[str, int], ...] = ()


class _CutError(Exception):
    """A transfer ended early or was refused; another try may go on from there."""


class _WrongError(_CutError):
    """The bytes are all here and are not those published; another try starts anew."""


def fetch(source: Source, folder: Path) -> None:
    """Put the file, or the members of the tar, into ``folder``."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / source.name, folder / f"{source.name}.part"
    if not target.exists():
        _check_space(source, folder, part)
        _transfer(source, part)
        os.replace(part, target)
    if source.members:
        _extract(source, target, folder)
        target.unlink()


def _check_space(source: Source, folder: Path, part: Path) -> None:
    needed = source.size + sum(size for _, size in source.members) - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FileError(f"{folder} has {free:,} bytes free and {source.name} needs {needed:,}; {_ROOM}")


_ROOM = "make room, or set XDG_CACHE_HOME to a folder on a larger disk that you can write to"


def _transfer(source: Source, part: Path) -> None:
    """All bytes of the file, checked, into ``part``, from wherever it ended before; each mirror is tried in turn."""
    failures: list[str] = []
    wrong: set[str] = set()  # mirrors that have another file: they are not asked again
    console = Console(stderr=True)
    columns = (
        *(TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn()),
        *(TextColumn("left"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(source.name, total=source.size)
        for url in source.urls * ROUNDS:
            if url in wrong:
                continue
            done = _done(part, source.size)
            logger.info("downloading %s from %s, %d of %d bytes are here", source.name, url, done, source.size)
            try:
                for total in _received(url, part, done, source.size) if done < source.size else ():
                    bar.update(task, completed=total)
                _check(source, part)
                logger.info("downloaded %s", source.name)
                return
            except (_CutError, OSError, http.client.HTTPException, ftplib.Error, EOFError) as error:
                logger.warning("%s: %s", url, error)
                failures.append(f"{url if done < source.size else part}: {error}")
                if isinstance(error, _WrongError) and done == 0:
                    wrong.add(url)
    kept = f"what came is kept in {part}: try again to go on from there" if _done(part, source.size) else "try again"
    raise FileError(
        f"{source.name} could not be downloaded ({'; '.join(dict.fromkeys(failures))}); {kept}, or put the file in "
        "place by hand"
    )


def _done(part: Path, size: int) -> int:
    """The bytes that are here; more than the file has are dropped."""
    if part.exists() and part.stat().st_size > size:
        part.unlink()
    return part.stat().st_size if part.exists() else 0


def _received(url: str, part: Path, done: int, size: int) -> Iterator[int]:
    """Append what ``url`` gives after the first ``done`` bytes; yield the bytes that are here."""
    with contextlib.ExitStack() as stack:
        stream, done = _opened(url, done, stack)
        file = stack.enter_context(_open(part, done))
        while block := stream.read(min(_BLOCK, size - done + 1)):
            done += len(block)
            if done > size:
                raise _CutError(f"it has more than the {size} bytes published")
            _write(file, block, part)
            yield done
        _write(file, b"", part)
    if done < size:
        raise _CutError(f"the connection ended after {done} of {size} bytes")


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A full disk is no failure of the network and no damage of an archive."""
    try:
        yield
    except OSError as error:
        raise FileError(f"{path} could not be written ({error.strerror}); {_ROOM}") from error


@contextlib.contextmanager
def _open(path: Path, done: int = 0) -> Iterator[FileIO]:
    """The file, to be written from byte ``done`` on; without a buffer, so that closing it has nothing left to write."""
    with _writing(path):
        file = path.open("r+b" if done else "wb", buffering=0)
    try:
        file.seek(done)
        yield file
    finally:
        with _writing(path):
            file.close()


def _write(file: FileIO, block: bytes, path: Path) -> None:
    """Write all of the block, or flush where there is no more."""
    with _writing(path):
        left = memoryview(block)
        while left:
            left = left[file.write(left) :]
        if not block:
            os.fsync(file.fileno())


def _opened(url: str, done: int, stack: contextlib.ExitStack) -> tuple[Any, int]:
    """A stream of the file from byte ``done`` on, or from 0 where the server knows no ranges."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "ftp":
        server = stack.enter_context(ftplib.FTP(timeout=TIMEOUT))
        server.connect(str(parts.hostname), parts.port or 21)
        server.login()
        server.voidcmd("TYPE I")
        connection = stack.enter_context(server.transfercmd(f"RETR {parts.path}", rest=done or None))
        return stack.enter_context(connection.makefile("rb")), done
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = stack.enter_context(urllib.request.urlopen(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        error.close()
        raise _CutError(f"the server answers {error.code} {error.reason}") from error
    if response.status != 206:
        return response, 0
    given = str(response.headers.get("Content-Range", ""))
    if not given.startswith(f"bytes {done}-"):
        raise _CutError(f"the server gives {given!r} where bytes {done}- are asked for")
    return response, done


def _check(source: Source, part: Path) -> None:
    """Remove the file and raise where its checksum is not the published one."""
    kind, expected = source.checksum.split(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with part.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != expected:
        part.unlink()
        raise _WrongError(
            f"it has the wrong {kind}: expected {expected}, got {digest.hexdigest()}, and was removed; if this stays, "
            "its publisher has changed it"
        )


def _extract(source: Source, archive: Path, folder: Path) -> None:
    """The wanted members, by their exact names and sizes, as files in ``folder``; nothing else is written."""
    wanted = dict(source.members)
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                if member.name not in wanted:
                    continue
                size = wanted.pop(member.name)
                stream = tar.extractfile(member) if member.isfile() and member.size == size else None
                if stream is None:
                    raise FileError(
                        f"{archive}: {member.name} is no file of {size} bytes ({member.size}); remove the archive and "
                        "download it again"
                    )
                _place(stream, size, folder / Path(member.name).name)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise FileError(f"{archive} is damaged ({error}); remove it and download it again") from error
    if wanted:
        raise FileError(f"{archive} lacks {', '.join(wanted)}; remove it and download it again")


def _place(stream: IO[bytes], size: int, target: Path) -> None:
    """Write beside, flush, rename."""
    part, done = target.with_name(f"{target.name}.part"), 0
    try:
        with _open(part) as file:
            while block := stream.read(_BLOCK):
                done += len(block)
                _write(file, block, part)
            _write(file, b"", part)
        if done != size:
            raise tarfile.ReadError(f"{target.name} has {done} of {size} bytes")
        with _writing(target):
            os.replace(part, target)
    finally:
        with contextlib.suppress(OSError):  # what went wrong before is what to tell
            part.unlink()
