"""Downloads: resumed, checked, and put in place whole or not at all. The servers run in the test on this machine."""

import errno
import hashlib
import http.server
import io
import logging
import os
import re
import shutil
import socket
import socketserver
import tarfile
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from gkmeans import FileError, _download
from gkmeans._download import Source, fetch

DATA = bytes(range(256)) * 4000  # about 1 MB, several blocks
SHA256 = hashlib.sha256(DATA).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Gives the data of its server, which says how well it behaves."""

    def do_GET(self):
        server, start = self.server, 0
        server.requests.append((self.path, self.headers.get("Range")))
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        data = server.others.get(self.path, server.data)
        if server.ranges and (match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            start = int(match[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start + server.shift}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else len(data)
        self.wfile.write(data[start : start + cut])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as out:
        out.data, out.ranges, out.shift, out.cuts, out.requests = DATA, True, 0, [], []
        out.others = {}  # by path, where it is not ``data``
        out.url = f"http://127.0.0.1:{out.server_port}/"
        thread = threading.Thread(target=out.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield out
        out.shutdown()
        thread.join()


@pytest.fixture
def source(server):
    return Source("X.bin", (f"{server.url}X.bin",), len(DATA), f"sha256:{SHA256}")


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_file_comes_whole_and_alone(source, server, tmp_path):
    fetch(source, tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder" / "X.bin").read_bytes() == DATA
    assert names(tmp_path / "new" / "folder") == ["X.bin"]
    assert server.requests == [("/X.bin", None)]


def test_a_file_that_is_there_is_not_asked_for(source, server, tmp_path):
    (tmp_path / "X.bin").write_bytes(DATA)
    fetch(source, tmp_path)
    assert not server.requests


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_part_is_resumed_where_it_ended(kind, source, server, tmp_path):
    (tmp_path / "X.bin.part").write_bytes(DATA[:300_000])
    fetch(replace(source, checksum=f"{kind}:{hashlib.new(kind, DATA).hexdigest()}"), tmp_path)
    assert server.requests == [("/X.bin", "bytes=300000-")]
    assert (tmp_path / "X.bin").read_bytes() == DATA


def test_a_server_without_ranges_gives_the_file_from_its_start(source, server, tmp_path):
    server.ranges = False
    (tmp_path / "X.bin.part").write_bytes(b"?" * 900_000)
    fetch(source, tmp_path)
    assert (tmp_path / "X.bin").read_bytes() == DATA


def test_a_cut_transfer_goes_on_by_itself(source, server, tmp_path):
    server.cuts = [400_000]
    fetch(source, tmp_path)
    assert server.requests == [("/X.bin", None), ("/X.bin", "bytes=400000-")]
    assert (tmp_path / "X.bin").read_bytes() == DATA


def test_a_transfer_that_stays_cut_keeps_its_part_for_the_next_time(source, server, tmp_path):
    server.cuts = [100_000] * _download.ROUNDS
    with pytest.raises(FileError, match=r"ended after 200000 of 1024000 bytes.*try again"):
        fetch(source, tmp_path)
    assert names(tmp_path) == ["X.bin.part"]
    assert (tmp_path / "X.bin.part").read_bytes() == DATA[:200_000]
    fetch(source, tmp_path)
    assert server.requests[-1] == ("/X.bin", "bytes=200000-")
    assert (tmp_path / "X.bin").read_bytes() == DATA


def test_a_whole_part_is_only_checked(source, server, tmp_path):
    (tmp_path / "X.bin.part").write_bytes(DATA)
    fetch(source, tmp_path)
    assert not server.requests
    assert names(tmp_path) == ["X.bin"]


def test_a_part_longer_than_the_file_is_dropped(source, server, tmp_path):
    (tmp_path / "X.bin.part").write_bytes(DATA + b"more")
    fetch(source, tmp_path)
    assert server.requests == [("/X.bin", None)]
    assert (tmp_path / "X.bin").read_bytes() == DATA


def test_a_wrong_range_is_refused(source, server, tmp_path):
    server.shift = 1
    (tmp_path / "X.bin.part").write_bytes(DATA[:1000])
    with pytest.raises(FileError, match="bytes 1001-"):
        fetch(source, tmp_path)
    assert (tmp_path / "X.bin.part").read_bytes() == DATA[:1000]


def test_the_second_mirror_is_taken_where_the_first_fails(source, server, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "gkmeans"):
        fetch(replace(source, urls=(f"{server.url}missing", *source.urls)), tmp_path)
    assert [path for path, _ in server.requests] == ["/missing", "/X.bin"]
    assert "404" in caplog.text
    assert "downloading X.bin" in caplog.text


def test_servers_that_fail_are_all_named(source, server, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/X"
    with pytest.raises(FileError, match="could not be downloaded") as error:
        fetch(replace(source, urls=(f"{server.url}missing", closed)), tmp_path)
    assert "404" in str(error.value)
    assert "refused" in str(error.value)
    assert names(tmp_path) == []


def test_a_server_that_does_not_answer_is_given_up(source, tmp_path, monkeypatch):
    monkeypatch.setattr(_download, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/X"
        with pytest.raises(FileError, match="timed out"):
            fetch(replace(source, urls=(url,)), tmp_path)


def test_a_wrong_checksum_removes_the_file_and_names_both(source, server, tmp_path):
    server.data = DATA[:-1] + b"?"
    with pytest.raises(FileError, match="wrong sha256") as error:
        fetch(source, tmp_path)
    assert SHA256 in str(error.value)
    assert hashlib.sha256(server.data).hexdigest() in str(error.value)
    assert names(tmp_path) == []


def test_the_second_mirror_is_taken_where_the_first_has_another_file(source, server, tmp_path):
    server.others["/old"] = b"?" + DATA[1:]
    fetch(replace(source, urls=(f"{server.url}old", *source.urls)), tmp_path)
    assert server.requests == [("/old", None), ("/X.bin", None)]  # anew, not from where the first ended
    assert (tmp_path / "X.bin").read_bytes() == DATA
    assert names(tmp_path) == ["X.bin"]


def test_a_mirror_with_another_file_is_asked_once(source, server, tmp_path):
    server.others["/old"] = b"?" + DATA[1:]
    with pytest.raises(FileError, match=r"old: it has the wrong sha256.*missing: the server answers 404") as error:
        fetch(replace(source, urls=(f"{server.url}old", f"{server.url}missing")), tmp_path)
    assert [path for path, _ in server.requests] == ["/old", "/missing", "/missing"]
    assert ".part" not in str(error.value)
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [1000, len(DATA)])
def test_a_part_that_is_of_another_file_is_dropped(size, source, server, tmp_path):
    (tmp_path / "X.bin.part").write_bytes(b"?" * size)
    fetch(source, tmp_path)
    assert server.requests[-1] == ("/X.bin", None)
    assert (tmp_path / "X.bin").read_bytes() == DATA


def test_a_part_is_named_only_where_there_is_one(source, server, tmp_path):
    with pytest.raises(FileError, match=r"404 Not Found\); try again, or put the file in place by hand"):
        fetch(replace(source, urls=(f"{server.url}missing",)), tmp_path)
    (tmp_path / "X.bin.part").write_bytes(DATA[:1000])
    with pytest.raises(FileError, match=r"is kept in .*X\.bin\.part: try again to go on from there"):
        fetch(replace(source, urls=(f"{server.url}missing",)), tmp_path)


@pytest.mark.parametrize("folder", ["file", "file/gkmeans/mnist"])
def test_a_folder_that_cannot_be_made_is_named(folder, source, server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match=rf"{folder} could not be written \((Not a directory|File exists)\).*XDG_CACHE"):
        fetch(source, tmp_path / folder)
    assert not server.requests


def test_a_file_longer_than_published_is_cut_off(source, server, tmp_path):
    server.data = DATA * 3
    with pytest.raises(FileError, match="more than the 1024000 bytes"):
        fetch(source, tmp_path)
    assert not (tmp_path / "X.bin").exists()
    assert (tmp_path / "X.bin.part").stat().st_size <= len(DATA)


def test_too_small_a_disk_is_noticed_before_the_transfer(source, server, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(FileError, match="1,000 bytes free"):
        fetch(source, tmp_path)
    assert not server.requests
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_file_in_place(source, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match=r"No space left.*make room"):
        fetch(source, tmp_path)
    assert "X.bin" not in names(tmp_path)


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


@needs_full
@pytest.mark.parametrize("size", [3000, len(DATA)])  # less than a buffer, and more
def test_a_full_disk_is_no_failure_of_the_network(size, source, server, tmp_path):
    server.data = DATA[:size]
    (tmp_path / "X.bin.part").symlink_to(FULL)
    with pytest.raises(FileError, match=r"X\.bin\.part could not be written \(No space left.*make room"):
        fetch(replace(source, size=size), tmp_path)
    assert len(server.requests) == 1


def test_a_file_that_cannot_be_opened_is_no_failure_of_the_network(source, server, tmp_path):
    (tmp_path / "X.bin.part").mkdir()
    with pytest.raises(FileError, match=r"X\.bin\.part could not be written \(Is a directory\).*can write to"):
        fetch(source, tmp_path)
    assert len(server.requests) == 1


def test_a_block_that_is_taken_in_pieces_is_written_whole(tmp_path):
    class Slow(io.FileIO):
        def write(self, block):
            return super().write(block[:7])

    with Slow(tmp_path / "X", "wb") as file:
        _download._write(file, DATA[:1000], tmp_path / "X")
    assert (tmp_path / "X").read_bytes() == DATA[:1000]


def test_a_bar_on_a_terminal_shows_the_file_and_the_time_left(source, tmp_path, monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(_download, "Console", lambda stderr: console if stderr else None)
    fetch(source, tmp_path)
    assert all(part in screen.getvalue() for part in ("X.bin", "1.0/1.0 MB", "left", "0:00:00"))


# ---- archives


def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, bytes):
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
            else:
                info.type, info.linkname = tarfile.SYMTYPE, data
                archive.addfile(info)
    return out.getvalue()


def archive(server, *members, wanted=(("x/a.bin", 5), ("x/b.bin", 3))):
    server.data = tar(*members)
    md5 = hashlib.md5(server.data).hexdigest()
    return Source("x.tar.gz", (f"{server.url}x.tar.gz",), len(server.data), f"md5:{md5}", wanted)


def test_only_the_wanted_members_of_an_archive_are_written(server, tmp_path):
    folder = tmp_path / "in"
    members = [("x/a.bin", b"aaaaa"), ("../evil", b"e"), ("/tmp/evil", b"e"), ("x/other", b"o"), ("x/b.bin", b"bbb")]
    fetch(archive(server, *members), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"a.bin": b"aaaaa", "b.bin": b"bbb"}
    assert names(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("x/a.bin", b"aaaaa")], "lacks x/b.bin"),
        ([("x/a.bin", b"aaaaa"), ("x/b.bin", b"bbbb")], "x/b.bin is no file of 3 bytes"),
        ([("x/a.bin", b"aaaaa"), ("x/b.bin", "/etc/passwd")], "x/b.bin is no file of 3 bytes"),
    ],
)
def test_an_archive_with_wrong_members_is_refused(members, words, server, tmp_path):
    with pytest.raises(FileError, match=words):
        fetch(archive(server, *members), tmp_path)
    assert not (tmp_path / "b.bin").exists()
    assert not list(tmp_path.glob("*.part"))


def test_a_damaged_archive_is_refused(server, tmp_path):
    whole = tar(("x/a.bin", os.urandom(50_000)))
    server.data = whole[: len(whole) // 2]
    md5 = hashlib.md5(server.data).hexdigest()
    source = Source("x.tar.gz", (server.url,), len(server.data), f"md5:{md5}", (("x/a.bin", 50_000),))
    with pytest.raises(FileError, match="damaged"):
        fetch(source, tmp_path)
    assert names(tmp_path) == ["x.tar.gz"]


@needs_full
@pytest.mark.parametrize("size", [5, 300_000])
def test_a_full_disk_is_no_damage_of_an_archive(size, server, tmp_path):
    (tmp_path / "a.bin.part").symlink_to(FULL)
    with pytest.raises(FileError, match=r"a\.bin\.part could not be written \(No space left.*make room"):
        fetch(archive(server, ("x/a.bin", bytes(size)), wanted=(("x/a.bin", size),)), tmp_path)
    assert names(tmp_path) == ["x.tar.gz"]


@pytest.mark.parametrize("name", ["a.bin", "a.bin.part"])
def test_a_member_that_cannot_be_put_in_place_is_no_damage_of_an_archive(name, server, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(FileError, match=rf"{name} could not be written \(Is a directory\)"):
        fetch(archive(server, ("x/a.bin", b"aaaaa"), wanted=(("x/a.bin", 5),)), tmp_path)
    assert names(tmp_path) == [name, "x.tar.gz"]


# ---- FTP


class Ftp(socketserver.StreamRequestHandler):
    """As much of FTP as a download needs."""

    def handle(self):
        self.say("220 ready")
        start, passive = 0, None
        for line in self.rfile:
            command, _, argument = line.decode().strip().partition(" ")
            self.server.commands.append((command, argument))
            if command == "EPSV" or command == "PASV":
                passive = socket.create_server(("127.0.0.1", 0))
                high, low = divmod(passive.getsockname()[1], 256)
                self.say(f"227 Entering Passive Mode (127,0,0,1,{high},{low})")
            elif command == "REST":
                start = int(argument)
                self.say("350 ok")
            elif command == "RETR" and argument == "/folder/X.bin":
                self.say("150 here it comes")
                with passive, passive.accept()[0] as connection:
                    connection.sendall(DATA[start:])
                self.say("226 done")
            elif command == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say({"USER": "331 password?", "PASS": "230 in", "TYPE": "200 ok"}.get(command, "550 no"))

    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def ftp():
    with socketserver.TCPServer(("127.0.0.1", 0), Ftp) as out:
        out.commands = []
        thread = threading.Thread(target=out.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield out
        out.shutdown()
        thread.join()


def test_ftp_is_resumed_too(source, ftp, tmp_path):
    there = replace(source, urls=(f"ftp://127.0.0.1:{ftp.server_address[1]}/folder/X.bin",))
    (tmp_path / "X.bin.part").write_bytes(DATA[:1_000_000])
    fetch(there, tmp_path)
    assert ("REST", "1000000") in ftp.commands
    assert (tmp_path / "X.bin").read_bytes() == DATA
    (tmp_path / "X.bin").unlink()
    ftp.commands.clear()
    fetch(there, tmp_path)
    assert "REST" not in [command for command, _ in ftp.commands]
    assert (tmp_path / "X.bin").read_bytes() == DATA


def test_a_file_that_ftp_does_not_have_is_an_error(source, ftp, tmp_path):
    with pytest.raises(FileError, match="550"):
        fetch(replace(source, urls=(f"ftp://127.0.0.1:{ftp.server_address[1]}/nothing",)), tmp_path)
