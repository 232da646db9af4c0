"""The files of a run: appended to, replaced, locked and read in one way, which a crash at any moment cannot tear.

- `append` returns when its bytes and the file's name are on disk; if it fails it takes back what it wrote.
- `replace` makes a file appear whole or not at all, under its name at once, and is on disk when it returns.
- `sweep` takes away what killed processes left half written, and nothing that a living one is writing.
- A `Lock` is held by one process at a time and ends with it; where locks do not work, it is refused by name.
- Only regular files are opened: no link, folder, device or pipe.

What goes wrong is an OSError that names the file.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from discreet._check import VARIABLE, limit

SCRATCH = re.compile(r"\..+\.[0-9a-f]{8}")  # names of files that are being written
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_SAFELY = _CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_PIECE = 1 << 20
_WAIT = 0.005  # seconds between two attempts at a lock


class NotRegular(OSError):
    """What is there is no regular file, and is not opened."""


class Changed(OSError):
    """A file is not as long as whoever appends to it knows it."""


class InUse(OSError):
    """Another process has the lock."""


class NoLocks(OSError):
    """Locks do not work where the file is."""


# --- reading ---------------------------------------------------------------------------------------------------------


def open_regular(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file; a link, folder, device or pipe is a NotRegular."""
    try:
        descriptor = os.open(path, flags | _SAFELY, mode)
    except ValueError as error:  # NUL, or half a character
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _not_regular(path: str | Path) -> NotRegular:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    try:
        what = kinds.get(stat.S_IFMT(os.lstat(path).st_mode), "a device")
    except OSError:
        what = "no regular file"
    return NotRegular(f"{path} is {what}, and only regular files are opened; put the file itself there.")


def is_file(path: str | Path) -> bool:
    """Whether something is there: a regular file, or a NotRegular error if it is anything else."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except ValueError as error:
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from error
    if not stat.S_ISREG(found.st_mode):
        raise _not_regular(path)
    return True


def read(path: str | Path, start: int = 0) -> bytes:
    """What a regular file holds, from a place on; an OSError if it is more than the limit of record_bytes."""
    most, size = limit("record_bytes"), os.stat(path).st_size
    if size > most:
        words = f"it has {size:,} bytes, and at most {most:,} are read ({VARIABLE}=record_bytes=N)"
        raise OSError(errno.EFBIG, words, str(path))
    return b"".join(pieces(path, start))


def read_text(path: str | Path) -> str:
    """A regular file as UTF-8 text; a ValueError if it is none."""
    return read(path).decode()


def pieces(path: str | Path, start: int = 0) -> Iterator[bytes]:
    """What a regular file holds, from a place on, a piece at a time."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        os.lseek(descriptor, start, os.SEEK_SET)
        while piece := os.read(descriptor, _PIECE):
            yield piece
    finally:
        os.close(descriptor)


def contains(path: str | Path, wanted: bytes) -> bool:
    """Whether these bytes are in a regular file."""
    rest = b""
    for piece in pieces(path):
        if wanted in rest + piece:
            return True
        rest = piece[-len(wanted) :]
    return False


def digest(path: str | Path) -> str:
    """The SHA-256 of a regular file."""
    found = hashlib.sha256()
    for piece in pieces(path):
        found.update(piece)
    return found.hexdigest()


# --- writing ---------------------------------------------------------------------------------------------------------


def append(path: str | Path, data: bytes, *, size: int | None = None, durable: bool = True) -> None:
    """Write at a file's end, and have it on disk before returning; what could not be written is taken back.

    - `size`: how long the file is before (0: new, or empty); any other length is a Changed error;
    - `durable=False` leaves it to the system when it is on disk.
    """
    descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        before = os.fstat(descriptor).st_size
        if size is not None and before != size:
            raise Changed(f"{path} has {before:,} bytes where there were {size:,}: somebody else wrote to it.")
        try:
            _write(descriptor, data)
            if durable:
                os.fsync(descriptor)
            if durable and before == 0:
                sync_folder(Path(path).parent)
        except BaseException:  # an interruption, too, must not leave half a line for the next one to be glued to
            with suppress(OSError):
                os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def truncate(path: str | Path, size: int) -> None:
    """Cut a file off, on disk before returning."""
    descriptor = open_regular(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(
    path: str | Path, content: bytes | str | Callable[[Path], Any], *, private: bool = False, durable: bool = True
) -> None:
    """Have a file hold this, whole or not at all, and on disk before returning.

    - `content`: bytes, text, or a function that writes the file whose path it is given;
    - `private`: only its owner may read it;
    - `durable=False` leaves it to the system when it is on disk: for what can be made again.
    """
    target = Path(path)
    is_file(target)
    if isinstance(content, str):
        try:
            content = content.encode()
        except UnicodeEncodeError as error:
            words = "it would hold a name that is no text, perhaps a path whose letters this locale has not"
            raise OSError(errno.EILSEQ, words, str(path)) from error
    sweep(target.parent, target.name)
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    descriptor = open_regular(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        with suppress(OSError, ImportError):
            _flock(descriptor)  # as long as it is held, nobody sweeps the file
        if callable(content):
            _made(content, scratch)
            os.chmod(scratch, stat.S_IMODE(os.fstat(descriptor).st_mode))  # another file may have other permissions
            _sync(scratch, durable=durable)  # which may be another file by now
        else:
            _write(descriptor, content)
            if durable:
                os.fsync(descriptor)
        os.replace(scratch, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(scratch)
        raise
    finally:
        os.close(descriptor)
    if durable:
        sync_folder(target.parent)


def _made(content: Callable[[Path], Any], scratch: Path) -> None:
    content(scratch)


def _sync(path: Path, *, durable: bool) -> None:
    if durable:
        descriptor = open_regular(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: str | Path) -> None:
    """Take a file away, if it is there, on disk before returning."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    sync_folder(Path(path).parent)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: str | Path) -> None:
    """Have new names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY | _CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: str | Path) -> list[Path]:
    """Make a folder and those above it, on disk before returning; which were made, the innermost first."""
    place = Path(folder)
    made = [p for p in (place, *place.parents) if not p.exists()]
    for each in reversed(made):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)
    if not place.is_dir():
        raise NotADirectoryError(f"{place} is no folder.")
    return made


def sweep(folder: str | Path, name: str | None = None) -> None:
    """Take away what killed processes left half written in a folder: all of it, or of one file's name."""
    for entry in list(os.scandir(folder)):
        mine = SCRATCH.fullmatch(entry.name) is not None and name in (None, entry.name[1:-9])
        if mine and entry.is_file(follow_symlinks=False):
            with suppress(OSError, ImportError):
                _sweep(Path(entry.path))


def _sweep(path: Path) -> None:
    descriptor = open_regular(path, os.O_RDWR)
    try:
        _flock(descriptor)  # fails where a living process is writing it
        os.unlink(path)
    finally:
        os.close(descriptor)


# --- locks -----------------------------------------------------------------------------------------------------------

_HELD: "weakref.WeakSet[Lock]" = weakref.WeakSet()
_TRIED: set[int] = set()  # file systems whose locks were seen to work


class Lock:
    """A lock on a file beside what it protects: one process at a time has it, and it ends with its process.

    A process that is forked off does not have it, and does not keep it alive.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object has it."""
        return self._descriptor is not None

    def acquire(self, wait: float = 0.0) -> None:
        """Have the lock, or an InUse error after so many seconds; a NoLocks error where locks do not work."""
        until = time.monotonic() + wait
        while not self._take():
            if time.monotonic() >= until:
                raise InUse(f"{self._path} is held by another process.")
            time.sleep(_WAIT)

    def _take(self) -> bool:
        descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        try:
            _flock(descriptor)
            if not self._names(descriptor):  # it was taken away just now: its name means another file
                os.close(descriptor)
                return False
            self._check(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except ImportError as error:
            os.close(descriptor)
            raise NoLocks(f"{self._path}: this system has no flock, so nobody can be kept out.") from error
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in _NOT_HERE:
                raise NoLocks(_refusal(self._path, f"flock fails with {errno.errorcode[error.errno]}")) from error
            raise
        self._descriptor = descriptor
        _HELD.add(self)
        return True

    def _names(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path, follow_symlinks=False), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _check(self, descriptor: int) -> None:
        """Refuse a file system whose locks keep nobody out: tried once for each."""
        device = os.fstat(descriptor).st_dev
        if device in _TRIED:
            return
        mounts = Path("/proc/self/mountinfo")
        why = local_locks(mounts.read_text(errors="replace"), device) if mounts.exists() else ""
        if why:
            raise NoLocks(_refusal(self._path, why))
        other = open_regular(self._path, os.O_RDWR)
        try:
            _flock(other)
        except BlockingIOError:
            _TRIED.add(device)
        else:
            raise NoLocks(_refusal(self._path, "a second lock was granted beside the first"))
        finally:
            os.close(other)

    def let_go(self, *, remove: bool = False) -> None:
        """Let others have it; `remove` takes its file away."""
        if self._descriptor is None:
            return
        if remove:
            with suppress(OSError):
                os.unlink(self._path)
        os.close(self._descriptor)
        self._descriptor = None
        _HELD.discard(self)


_NOT_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)


def _refusal(path: Path, why: str) -> str:
    return f"{path}: locks do not work on its file system ({why}), so nobody can be kept out; use a local disk."


def local_locks(mounts: str, device: int) -> str:
    """Why locks on this device keep out only processes of this machine, by /proc/self/mountinfo; "" if they do not."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, named = before.split(), after.split()
        if len(fields) > 2 and fields[2] == wanted and len(named) > 2 and named[0].startswith("nfs"):
            for option in named[2].split(","):
                if option in ("nolock", "local_lock=all", "local_lock=flock"):
                    return f"{named[0]} mounted with {option}"
    return ""


def _flock(descriptor: int) -> None:
    fcntl: ModuleType = __import__("fcntl")  # there is none on some systems
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _forget_locks() -> None:
    for lock in list(_HELD):
        if lock._descriptor is not None:
            os.close(lock._descriptor)
            lock._descriptor = None
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
