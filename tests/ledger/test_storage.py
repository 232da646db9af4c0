"""What discreet.ledger.storage promises, a sentence of docs/reliability.md each."""

import errno
import hashlib
import os
import signal

import pytest

from discreet.ledger import storage
from discreet.ledger.storage import Changed, InUse, Lock, NoLocks, NotRegular, local_locks


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def failing(name, number):
    def fail(*arguments, **settings):
        raise OSError(number, os.strerror(number))

    return name, fail


# --- a line is on disk, with its file's name, before `append` returns ------------------------------------------------


def test_an_append_is_synced_and_a_new_name_too(path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda d: (synced.append(os.fstat(d).st_ino), sync(d)))
    storage.append(path, b"one\n", size=0)
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]
    storage.append(path, b"two\n", size=4)
    assert synced[2:] == [path.stat().st_ino]
    assert path.read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_what_cannot_be_appended_is_taken_back(path, monkeypatch, number):
    storage.append(path, b"one\n")
    with monkeypatch.context() as patch:
        patch.setattr(*failing("os.fsync", number))
        with pytest.raises(OSError, match=os.strerror(number)):
            storage.append(path, b"two\n")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda d, data: write(d, bytes(data)[:1]) if len(data) > 2 else fail_with(number))
        with pytest.raises(OSError, match=os.strerror(number)):
            storage.append(path, b"two\n")
    assert path.read_bytes() == b"one\n"


def fail_with(number):
    raise OSError(number, os.strerror(number))


def test_writes_that_the_system_cuts_short_are_continued(path, monkeypatch):
    write = os.write
    monkeypatch.setattr("os.write", lambda d, data: write(d, bytes(data)[:3]))
    storage.append(path, b"a longer line\n")
    storage.replace(path.with_name("other"), b"another line\n")
    assert path.read_bytes() == b"a longer line\n"
    assert path.with_name("other").read_bytes() == b"another line\n"


def test_a_file_that_somebody_else_wrote_to_is_not_appended_to(path):
    storage.append(path, b"one\n")
    with pytest.raises(Changed, match="has 4 bytes where there were 3"):
        storage.append(path, b"two\n", size=3)
    assert path.read_bytes() == b"one\n"


# --- a file appears whole or not at all ------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"new", "new", lambda scratch: scratch.write_bytes(b"new")])
def test_a_replaced_file_is_synced_before_it_has_its_name_and_its_name_after(path, monkeypatch, content):
    path.write_bytes(b"old")
    seen, sync, move = [], os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda d: (seen.append(os.fstat(d).st_ino), sync(d)))
    monkeypatch.setattr("os.replace", lambda a, b: (seen.append("named"), move(a, b)))
    storage.replace(path, content)
    assert seen == [path.stat().st_ino, "named", path.parent.stat().st_ino]
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("call", ["os.write", "os.fsync", "os.replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_file_that_cannot_be_replaced_is_as_it_was_and_nothing_is_left(path, monkeypatch, call, number):
    path.write_bytes(b"old")
    monkeypatch.setattr(*failing(call, number))
    with pytest.raises(OSError, match=os.strerror(number)):
        storage.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_what_is_private_is_its_owners_alone(path):
    storage.replace(path, b"secret", private=True)
    storage.replace(path.with_name("other"), lambda scratch: scratch.write_bytes(b"secret"), private=True)
    assert {p.stat().st_mode & 0o777 for p in path.parent.iterdir()} == {0o600}


def test_folders_that_are_made_are_synced_into_those_above(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda d: (synced.append(os.fstat(d).st_ino), sync(d)))
    made = storage.make_folder(tmp_path / "a" / "b")
    assert made == [tmp_path / "a" / "b", tmp_path / "a"]
    assert synced == [tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        storage.make_folder(tmp_path / "file")


# --- what a killed process left is swept; what a living one writes is not --------------------------------------------


def test_files_of_killed_processes_are_swept_and_no_others(path):
    for name in (".file.0123abcd", ".other.0123abcd", ".file.notes", "file.0123abcd"):
        path.with_name(name).touch()
    path.with_name(".link.0123abcd").symlink_to(path)
    storage.replace(path, b"new")
    assert not path.with_name(".file.0123abcd").exists()
    assert path.with_name(".other.0123abcd").exists()
    storage.sweep(path.parent)
    left = {p.name for p in path.parent.iterdir()}
    assert left == {"file", ".file.notes", "file.0123abcd", ".link.0123abcd"}


def test_a_file_that_is_being_written_is_not_swept(path):
    def content(scratch):
        storage.sweep(path.parent)
        scratch.write_bytes(b"new")

    storage.replace(path, content)
    assert path.read_bytes() == b"new"


# --- locks -----------------------------------------------------------------------------------------------------------


def test_one_has_a_lock_at_a_time(path):
    first, second = Lock(path), Lock(path)
    first.acquire()
    with pytest.raises(InUse, match="held by another process"):
        second.acquire()
    first.let_go()
    second.acquire(wait=1.0)
    assert (first.held, second.held) == (False, True)
    second.let_go(remove=True)
    assert not path.exists()


def test_a_lock_ends_with_its_process_however_it_ends(path):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        lock = Lock(path)
        lock.acquire()
        os.write(writing, b"x")
        signal.pause()
    os.read(reading, 1)
    with pytest.raises(InUse):
        Lock(path).acquire()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    lock = Lock(path)
    lock.acquire()
    lock.let_go()


def test_a_forked_process_does_not_keep_a_lock_alive(path):
    """Workers that read data are forked, and may outlive the process that trains."""
    lock = Lock(path)
    lock.acquire()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"y" if lock.held else b"n")
        signal.pause()
    assert os.read(reading, 1) == b"n"
    lock.let_go()
    other = Lock(path)
    other.acquire()
    other.let_go()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_lock_whose_file_was_taken_away_is_of_the_new_file(path):
    first, second = Lock(path), Lock(path)
    first.acquire()
    path.unlink()
    second.acquire()  # another file by the same name
    assert second.held
    second.let_go()
    first.let_go()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_locks_fail_they_are_refused_by_name(path, monkeypatch, number):
    monkeypatch.setattr(*failing("fcntl.flock", number))
    with pytest.raises(NoLocks, match=f"locks do not work on its file system .*{errno.errorcode[number]}"):
        Lock(path).acquire()


def test_locks_that_keep_nobody_out_are_refused(path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", lambda descriptor, how: None)
    monkeypatch.setattr(storage, "_TRIED", set())
    with pytest.raises(NoLocks, match="a second lock was granted beside the first"):
        Lock(path).acquire()


def test_locks_of_one_machine_alone_are_refused_by_name():
    local = "36 25 0:31 / /home rw,relatime shared:1 - nfs4 host:/home rw,vers=4.2,local_lock=none,addr=1\n"
    lost = "37 25 0:32 / /data rw shared:2 - nfs host:/data rw,vers=3,nolock,addr=1\n"
    own = "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
    text = local + lost + own
    assert local_locks(text, os.makedev(0, 31)) == ""
    assert local_locks(text, os.makedev(0, 32)) == "nfs mounted with nolock"
    assert local_locks(text.replace("local_lock=none", "local_lock=all"), os.makedev(0, 31)).endswith("local_lock=all")
    assert local_locks(text, os.makedev(254, 0)) == ""
    assert local_locks("garbage\n- - -\n", os.makedev(254, 0)) == ""


# --- only regular files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "what"), [("link", "a link"), ("pipe", "a pipe"), ("folder", "a folder")])
def test_what_is_no_regular_file_is_refused_by_name(path, make, what):
    if make == "link":
        path.symlink_to("/dev/null")
    elif make == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    for work in (
        lambda: storage.read(path),
        lambda: storage.append(path, b"x"),
        lambda: storage.replace(path, b"x"),
        lambda: storage.is_file(path),
        lambda: storage.truncate(path, 0),
        lambda: Lock(path).acquire(),
    ):
        with pytest.raises(NotRegular, match=f"is {what}, and only regular files are opened"):
            work()
    with pytest.raises(NotRegular, match="is a device"):
        storage.read("/dev/null")


def test_files_are_read_and_their_hashes(path):
    path.write_bytes(b"x" * 3_000_000)
    assert storage.read(path, 2_999_998) == b"xx"
    assert storage.digest(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()
    storage.truncate(path, 3)
    assert storage.read_text(path) == "xxx"
    assert storage.is_file(path)
    storage.remove(path)
    storage.remove(path)
    assert not storage.is_file(path)


def test_half_letters_are_an_error_that_names_the_file_and_nothing_is_written(tmp_path):
    with pytest.raises(OSError, match="no text, perhaps a path"):
        storage.replace(tmp_path / "a", "name = '\udcff'")
    assert list(tmp_path.iterdir()) == []
