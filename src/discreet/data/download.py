"""Where well-known data is: in a folder, in the shared one, in the cache, or to be downloaded."""

import hashlib
import os
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

from discreet.data.files import Progress, whole_file
from discreet.errors import ConfigError

IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_FILES = (*CIFAR_TRAIN, "test_batch.bin")

# SHA-256 of the files whose MD5 torchvision and the publishers give
REMOTE = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        {
            "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        {
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
    ),
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/",
        {CIFAR_ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
    ),
}


@dataclass(frozen=True)
class Files:
    """The files of a well-known data set, for training and for testing."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]

    @classmethod
    def of(cls, name: str, folder: str | Path | None, download: bool, progress: Progress | None) -> "Files":
        """Where the data is, after a download if need be."""
        shared = os.environ.get("DISCREET_DATA", "")
        places = [Path(folder)] if folder is not None else []
        places += [Path(shared) / name] if bool(shared) else []
        places += [cache_folder(name)]
        for place in places:
            source = cls.inside(name, place)
            if source is not None:
                return source
        into = places[0] if folder is not None else places[-1]
        files = ", ".join(REMOTE[name][1])
        if not download:
            raise ConfigError(
                f"{name} is not in {', '.join(map(str, places))} and may not be downloaded; put {files} in {into}."
            )
        try:
            into.mkdir(parents=True, exist_ok=True)
            _download(name, into, progress)
        except (OSError, HTTPException) as error:
            raise ConfigError(f"{name} cannot be downloaded ({error}); put {files} in {into}.") from error
        source = cls.inside(name, into)
        if source is None:
            raise ConfigError(f"{name} was downloaded to {into}, but its files are not there; put {files} in {into}.")
        return source

    @classmethod
    def inside(cls, name: str, place: Path) -> "Files | None":
        """The files in one folder, or None if some are missing."""
        if name != "cifar10":
            files = [_plain_or_gzipped(place, file) for file in IDX_FILES]
            paths = tuple(file for file in files if file is not None)
            return cls(paths[:2], paths[2:]) if len(paths) == len(files) else None
        tables = [tuple(sorted(place.glob(f"{part}*.parquet"))) for part in ("train", "test")]
        folders = [(place / "train",), (place / "test",)]
        if all(tables):
            return cls(tables[0], tables[1])
        if _binary_version(place):
            paths = tuple(_binary_version(place))
            return cls(paths[:-1], paths[-1:])
        if all(path.is_dir() for (path,) in folders):
            return cls(folders[0], folders[1])
        archive = place / CIFAR_ARCHIVE
        return cls((archive,), (archive,)) if archive.is_file() else None


def cache_folder(name: str) -> Path:
    """Where downloaded and decoded data is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "discreet" / name


def _plain_or_gzipped(place: Path, file: str) -> Path | None:
    candidates = (place / file, place / file.removesuffix(".gz"))
    return next((path for path in candidates if path.is_file()), None)


def _binary_version(place: Path) -> list[Path]:
    """The six files of CIFAR-10's binary version, here or in the folder that its archive makes; else none."""
    for here in (place, place / "cifar-10-batches-bin"):
        paths = [here / file for file in CIFAR_FILES]
        if all(path.is_file() for path in paths):
            return paths
    return []


def _download(name: str, into: Path, progress: Progress | None) -> None:
    """Fetch what is missing; a file that is not what it should be is not kept."""
    address, sums = REMOTE[name]
    for file, expected in sums.items():
        if _plain_or_gzipped(into, file) is not None:
            continue
        with whole_file(into / file) as out:
            digest = _fetch(address + file, out, progress)
            if digest != expected:
                raise ConfigError(
                    f"{address}{file} has the SHA-256 {digest}, not {expected}; nothing was kept. Get the file "
                    f"elsewhere and put it in {into}."
                )


def _fetch(address: str, out: BinaryIO, progress: Progress | None) -> str:
    """Copy what is at the address, and return its SHA-256."""
    digest, done = hashlib.sha256(), 0
    with _open(address) as answer:
        length = str(answer.headers.get("Content-Length") or 0)
        total = int(length) if length.isdecimal() else 0
        while chunk := answer.read(1 << 20):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return digest.hexdigest()


def _open(address: str) -> Any:
    """The answer at an address; the only function that goes to the network."""
    return urllib.request.urlopen(address, timeout=60)
