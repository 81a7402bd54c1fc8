"""Blocks of remote objects on a local disk: what comes back, what is refused, what goes first, and
who shares it."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpuload.errors import FileError
from gpuload.storage import blockcache
from gpuload.storage.blockcache import (
    BLOCK_BYTES,
    PAGE_BYTES,
    Block,
    BlockCache,
    BlockPiece,
    digest_of,
)
from tests import forkserver

LIMIT = 1 << 22


def content_of(number: int, num_bytes: int = BLOCK_BYTES) -> memoryview:
    return memoryview(
        np.random.default_rng(number).integers(0, 256, num_bytes, np.uint8)
    ).toreadonly()


def block_of(number: int, num_bytes: int = BLOCK_BYTES) -> Block:
    return Block(digest_of("object"), number, num_bytes)


def load_whole(cache: BlockCache, block: Block) -> bytes | None:
    memory = bytearray(block.num_bytes)
    return (
        bytes(memory)
        if cache.load(block, [BlockPiece(0, block.num_bytes, 0)], memoryview(memory))
        else None
    )


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in files_of(folder))


@pytest.fixture
def cache(tmp_path: Path) -> BlockCache:
    return BlockCache(str(tmp_path / "cache"), LIMIT)


@pytest.mark.parametrize("num_bytes", [1, 100, PAGE_BYTES, PAGE_BYTES + 1, BLOCK_BYTES])
def test_pieces_of_a_block_come_back(cache: BlockCache, num_bytes: int) -> None:
    block, content = block_of(3, num_bytes), content_of(3, num_bytes)
    assert load_whole(cache, block) is None
    cache.store(block, content)
    assert load_whole(cache, block) == content
    ends = np.unique(
        np.minimum([0, 1, 40, PAGE_BYTES - 1, PAGE_BYTES + 7, 5 * PAGE_BYTES, num_bytes], num_bytes)
    )
    pieces = [BlockPiece(int(a), int(b - a), 10 + int(a)) for a, b in itertools.pairwise(ends)][::2]
    memory = bytearray(num_bytes + 10)
    assert cache.load(block, pieces[::-1], memoryview(memory))
    expected = bytearray(num_bytes + 10)
    for piece in pieces:
        expected[piece.place : piece.place + piece.length] = content[
            piece.begin : piece.begin + piece.length
        ]
    assert memory == expected


def test_a_block_of_another_object_number_or_length_is_another_one(cache: BlockCache) -> None:
    cache.store(block_of(0, 100), content_of(0, 100))
    for other in (Block(digest_of("other"), 0, 100), block_of(1, 100), block_of(0, 99)):
        assert load_whole(cache, other) is None


def test_threads_count_their_blocks_one_after_the_other_also_without_locks_of_files(
    cache: BlockCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, num_inside, open_new = [], [], blockcache.open_new

    def open_slowly(path: str) -> int:
        inside.append(path)
        num_inside.append(len(inside))
        descriptors = [open_new(path)] + [os.open(path, os.O_RDONLY) for _ in range(20)]
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        inside.remove(path)
        return descriptors[0]

    monkeypatch.setattr(blockcache, "fcntl", None)
    monkeypatch.setattr(blockcache, "open_new", open_slowly)
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda number: cache.store(block_of(number, 100), content_of(number, 100)),
                range(40),
            )
        )

    assert num_inside == [1] * 40


@pytest.mark.parametrize("place", ["head", "sums", "first page", "last page", "end", "empty"])
def test_a_damaged_block_is_said_and_made_anew(
    cache: BlockCache, tmp_path: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    block, content = block_of(0, 3 * PAGE_BYTES), content_of(0, 3 * PAGE_BYTES)
    cache.store(block, content)
    [path] = files_of(tmp_path)
    raw = bytearray(path.read_bytes())
    begins = {
        "head": 20,
        "sums": blockcache.SUMS + 1,
        "first page": block.begin + 5,
        "last page": len(raw) - 1,
    }
    if place in begins:
        raw[begins[place]] ^= 1
    path.write_bytes(raw[: {"end": -1, "empty": 0}.get(place)])
    with caplog.at_level(logging.WARNING, "gpuload"):
        assert load_whole(cache, block) is None
        assert load_whole(cache, block) is None
    assert [record.message.count("read from the store again") for record in caplog.records] == [1]
    assert str(path) in caplog.text
    cache.store(block, content)
    assert load_whole(cache, block) == content


def test_a_process_without_the_core_has_blocks_of_its_own(
    cache: BlockCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store(block_of(0, 100), content_of(0, 100))
    with monkeypatch.context() as other_process:
        other_process.setattr(blockcache, "SUFFIX", "" if blockcache.SUFFIX else "-crc32")
        other_process.setattr(blockcache, "checksum", zlib.adler32)
        assert load_whole(cache, block_of(0, 100)) is None
        cache.store(block_of(0, 100), content_of(0, 100))
        assert load_whole(cache, block_of(0, 100)) == content_of(0, 100)
    assert load_whole(cache, block_of(0, 100)) == content_of(0, 100)
    assert caplog.text == ""


def test_a_page_that_is_not_asked_for_is_not_compared(cache: BlockCache, tmp_path: Path) -> None:
    block, content = block_of(0, 3 * PAGE_BYTES), content_of(0, 3 * PAGE_BYTES)
    cache.store(block, content)
    [path] = files_of(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    memory = bytearray(10)
    assert cache.load(block, [BlockPiece(2 * PAGE_BYTES - 10, 10, 0)], memoryview(memory))
    assert memory == content[2 * PAGE_BYTES - 10 : 2 * PAGE_BYTES]


def test_the_blocks_that_were_not_used_for_longest_go_first(
    cache: BlockCache, tmp_path: Path
) -> None:
    for number in range(3):
        cache.store(block_of(number), content_of(number))
        [path] = tmp_path.rglob(f"*-{number}{blockcache.SUFFIX}")
        os.utime(path, (1000 + number, 1000 + number))
    assert load_whole(cache, block_of(0)) is not None  # now it is the one that was used last
    cache.store(block_of(3), content_of(3))
    stored_numbers = [
        number for number in range(4) if load_whole(cache, block_of(number)) is not None
    ]
    assert stored_numbers == [0, 2, 3]
    cache.store(block_of(4), content_of(4))
    assert bytes_of(tmp_path) <= LIMIT * 7 // 8  # an eighth more than it has to
    assert bytes_of(tmp_path) <= LIMIT


@pytest.mark.parametrize("text", [None, b"", b"abc", b"\xff" * 8, b"\0" * 8])
def test_the_limit_holds_whatever_the_file_of_the_sum_says(
    cache: BlockCache, tmp_path: Path, text: bytes | None
) -> None:
    for number in range(3):
        cache.store(block_of(number), content_of(number))
    [lock] = tmp_path.rglob("lock")
    assert int.from_bytes(lock.read_bytes(), "little") == bytes_of(tmp_path)
    if text is None:
        lock.unlink()
    else:
        lock.write_bytes(text)
    for number in range(3, 9):
        cache.store(block_of(number), content_of(number))
    if text != b"\0" * 8:  # a sum that is too small is corrected only when it reaches the limit
        assert bytes_of(tmp_path) <= LIMIT
    assert bytes_of(tmp_path) <= 2 * LIMIT
    assert load_whole(cache, block_of(8)) == content_of(8)


@pytest.mark.parametrize("num_listings", range(5))
def test_a_block_that_is_renamed_while_files_are_listed_counts(
    cache: BlockCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_listings: int
) -> None:
    """Another thread renames without the lock, while this one lists parts, the folder, and the
    folder of the block."""
    cache.store(block_of(0), content_of(0))
    part, block = str(tmp_path / "cache" / "blocks" / "parts" / "part"), block_of(1)
    os.close(cache._reserve(part, block.file_bytes))
    listings, entries = list[str](), blockcache._entries

    def list_and_rename(folder: str) -> list[os.DirEntry[str]]:
        if len(listings) == num_listings:
            os.rename(part, cache._path(block))
        listings.append(folder)
        return entries(folder)

    monkeypatch.setattr(blockcache, "_entries", list_and_rename)
    assert cache._make_room(0) >= block_of(0).file_bytes + block.file_bytes


def test_nothing_that_gpuload_did_not_write_is_removed(cache: BlockCache, tmp_path: Path) -> None:
    home = tmp_path / "cache" / "blocks"
    strange_files = [
        home / "ab" / "notes.txt",
        home / "notes.txt",
        home / "parts" / "draft",
        tmp_path / "cache" / "x",
    ]
    (home / "ab").mkdir()
    for path in strange_files:
        path.write_bytes(bytes(LIMIT))
        os.utime(path, (1, 1))
    for number in range(9):
        cache.store(block_of(number), content_of(number))
    BlockCache(str(tmp_path / "cache"), LIMIT)
    assert all(path.exists() for path in strange_files)


def test_only_this_user_may_read_and_write(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path / "cache"), LIMIT)
    cache.store(block_of(0, 10), content_of(0, 10))
    for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    BlockCache(str(tmp_path / "open"), LIMIT).store(block_of(0, 10), content_of(0, 10))
    assert [path.name for path in (tmp_path / "open").iterdir()] == [f"user-{os.geteuid()}"]
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "blocks").symlink_to(tmp_path / "cache" / "blocks")
    with pytest.raises(FileError, match=r"blocks is no place for files that gpuload keeps"):
        BlockCache(str(tmp_path / "linked"), LIMIT)


def test_a_folder_in_it_that_belongs_to_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("root alone can give folders away")
    user_folder = tmp_path / "open" / f"user-{os.geteuid()}"
    (user_folder / "blocks").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    os.chown(user_folder, 65534, 65534)
    with pytest.raises(
        FileError, match=r"user-\d+ is no place for files(.|\n)*belongs to the user 65534"
    ):
        BlockCache(str(tmp_path / "open"), LIMIT)


def test_the_folder_may_be_removed_while_it_is_used(
    cache: BlockCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store(block_of(0, 10), content_of(0, 10))
    shutil.rmtree(tmp_path / "cache")
    assert load_whole(cache, block_of(0, 10)) is None
    cache.store(block_of(0, 10), content_of(0, 10))
    assert load_whole(cache, block_of(0, 10)) == content_of(0, 10)
    assert caplog.text == ""


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        FileError, match=r"file/cache cannot be the cache(.|\n)*Not a directory(.|\n)*gl\.Remote"
    ):
        BlockCache(str(tmp_path / "file" / "cache"), LIMIT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_part_of_a_killed_process_is_not_believed_and_goes(
    cache: BlockCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = os.fork()
    if not child:
        monkeypatch.setattr(os, "replace", lambda *paths: os.kill(os.getpid(), signal.SIGKILL))
        cache.store(block_of(0), content_of(0))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    [part] = files_of(tmp_path)
    # The child had the random number of this process, which tells a process from an earlier one
    # with its number.
    part.rename(part.with_name(part.name.replace(blockcache.PROCESS, "0" * 8)))
    assert load_whole(cache, block_of(0)) is None
    again = BlockCache(str(tmp_path / "cache"), LIMIT)
    assert files_of(tmp_path) == []
    again.store(block_of(0), content_of(0))
    assert load_whole(again, block_of(0)) == content_of(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_processes_share_it(tmp_path: Path) -> None:
    num_bytes, folder = 50_000, str(tmp_path / "cache")
    children = []
    for first in range(4):
        child = os.fork()
        if not child:
            status = 1
            try:
                cache = BlockCache(folder, LIMIT // 4)
                for number in [*range(first, 40), *range(first)] * 2:
                    block = block_of(number, num_bytes)
                    content = load_whole(cache, block)
                    if content is None:
                        cache.store(block, content_of(number, num_bytes))
                    elif content != content_of(number, num_bytes):
                        os._exit(2)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert LIMIT // 8 < bytes_of(tmp_path) <= LIMIT // 4
    assert not list((tmp_path / "cache" / "blocks" / "parts").iterdir())


ON_SMALL_DISK = """
import logging, os, subprocess, sys
from tests.storage.test_blockcache import *
os.makedirs(sys.argv[1] + "/disk")
mount = ["mount", "-t", "tmpfs", "-o", "size=2500k", "none", sys.argv[1] + "/disk"]
subprocess.run(mount, check=True)
logging.basicConfig(format="%(message)s", stream=sys.stdout)
cache = BlockCache(sys.argv[1] + "/disk/cache", LIMIT)
for number in range(5):
    cache.store(block_of(number), content_of(number))
print([number for number in range(5) if load_whole(cache, block_of(number)) == content_of(number)])
print(bytes_of(Path(sys.argv[1])) <= 2500 << 10, os.listdir(sys.argv[1] + "/disk/cache/blocks/parts"))
subprocess.run(["mount", "-o", "remount,ro", sys.argv[1] + "/disk"], check=True)
cache = BlockCache(sys.argv[1] + "/disk/cache", LIMIT)
cache.store(block_of(4), content_of(4))
cache.store(block_of(3), content_of(3))
print([number for number in range(5) if load_whole(cache, block_of(number)) == content_of(number)])
try:
    BlockCache(sys.argv[1] + "/disk/other", LIMIT)
except OSError as error:
    print(error)
"""


def test_a_full_disk_and_a_read_only_one_are_said_once(tmp_path: Path) -> None:
    single = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*single, "true"], capture_output=True).returncode
    ):
        pytest.skip("this system lets nobody mount a small disk of his own")
    code = f"import sys; sys.path.insert(0, {str(forkserver.ROOT)!r})" + ON_SMALL_DISK
    process = subprocess.run(
        [*single, sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert not process.returncode, process.stderr
    full, blocks, sizes, read_only, blocks_again, refusal, *_ = process.stdout.splitlines()
    assert "takes no more blocks" in full
    assert "No space left on device" in full
    assert blocks == blocks_again == "[0, 1]"
    assert sizes == "True []"
    assert "Read-only file system" in read_only
    assert "other cannot be the cache" in refusal


def place_of(cache: BlockCache, block: Block) -> Path:
    return Path(cache._path(block))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "kind", ["pipe", "folder", "link", "link to nothing", "of another user", "open to others"]
)
def test_what_stands_in_the_place_of_a_block_is_not_read_and_goes(
    cache: BlockCache, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    block, content = block_of(3), content_of(3)
    cache.store(block, content)
    place = place_of(cache, block)
    elsewhere = tmp_path / "elsewhere"
    place.rename(elsewhere)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "link to nothing":
        place.symlink_to(tmp_path / "nothing")
    else:
        shutil.copy(elsewhere, place)
        if kind == "open to others":
            place.chmod(0o666)
        elif os.geteuid() == 0:
            os.chown(place, 12345, 12345)
        else:
            pytest.skip("needs root")
    with caplog.at_level(logging.WARNING):
        assert load_whole(cache, block) is None
    assert "is not used" in caplog.text
    assert not os.path.lexists(place)
    assert elsewhere.exists()
    cache.store(block, content)
    assert load_whole(cache, block) == content


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "link", "second name"])
def test_what_stands_in_the_place_of_the_sum_ends_the_writing(
    cache: BlockCache, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    lock = Path(cache._home) / "lock"
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "link":
        lock.symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "letter").write_text("Dear reader")
        os.link(tmp_path / "letter", lock)
    cache.store(block_of(3), content_of(3))
    assert load_whole(cache, block_of(3)) is None
    assert "takes no more blocks" in caplog.text
    assert not (tmp_path / "elsewhere").exists()
    assert kind != "second name" or (tmp_path / "letter").read_text() == "Dear reader"


def test_two_threads_that_meet_a_damaged_block_remove_it_once(
    cache: BlockCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    block, content = block_of(3), content_of(3)
    cache.store(block, content)
    place_of(cache, block).write_bytes(b"damaged")
    read_pages, is_first = blockcache._read_pages, [True]

    def read(*arguments: object) -> object:
        if is_first:
            is_first.clear()
            # This thread has opened the block, and another one is quicker.
            assert load_whole(cache, block) is None
            cache.store(block, content)
        return read_pages(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(blockcache, "_read_pages", read)
    assert load_whole(cache, block) is None
    assert load_whole(cache, block) == content  # that which the other thread stored
    assert caplog.text.count("is not used") == 1


@pytest.mark.parametrize("name", ["blocks", "blocks/parts"])
def test_a_link_in_place_of_a_folder_is_refused_and_nothing_is_made_there(
    tmp_path: Path, name: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "cache" / name
    link.parent.mkdir(0o700, parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(FileError, match="no place"):
        BlockCache(str(tmp_path / "cache"), LIMIT)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["", "parts", "ab"])
def test_a_folder_that_others_may_write_meanwhile_is_used_no_more(
    cache: BlockCache, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    block, content = block_of(3), content_of(3)
    cache.store(block, content)
    folder = place_of(cache, block).parent if name == "ab" else Path(cache._home) / name
    folder.chmod(0o777)
    assert load_whole(cache, block) is None
    cache.store(block_of(4), content_of(4))
    assert not place_of(cache, block_of(4)).exists()
    assert caplog.text.count("is not used any more") == 1
    assert "other users may write" in caplog.text


def test_blocks_that_are_dated_in_the_future_go_first(cache: BlockCache) -> None:
    blocks = [block_of(number) for number in range(3)]
    for number, block in enumerate(blocks):
        cache.store(block, content_of(number))
    os.utime(place_of(cache, blocks[1]), (4e9, 4e9))
    cache.store(block_of(3), content_of(3))  # the fourth is beyond the limit
    assert not place_of(cache, blocks[1]).exists()
    assert place_of(cache, blocks[0]).exists()
    assert place_of(cache, blocks[2]).exists()
    os.utime(place_of(cache, blocks[2]), (4e9, 4e9))
    assert load_whole(cache, blocks[2]) is not None
    assert place_of(cache, blocks[2]).stat().st_mtime < 4e9  # it is in use, and says so
