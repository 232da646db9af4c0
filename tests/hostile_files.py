"""Hostile data files: each a function that writes one where it is told, by what is wrong with it."""

import gzip
import io
import os
import struct
import tarfile
import zipfile
from functools import partial

import numpy as np
from data_files import idx, image, packed, pixels, write_cifar_binary
from hostile_texts import SCHEMA, TABLE

# a bomb takes seconds to make: `make soak` has those that exceed the limit as it is, tests those of a smaller one
SOAK = bool(os.environ.get("DISCREET_SOAK"))
BOMB = 700 << 20 if SOAK else 40 << 20
ENVIRONMENT = {} if SOAK else {"DISCREET_LIMITS": "unpacked_bytes=39e6"}


def table_call(folder, data="t.csv"):
    """The arguments that train on a table."""
    (folder / "schema.toml").write_text(SCHEMA)
    return ["train", "--data", data, "--schema", "schema.toml", *SMALL]


SMALL = ["--model", "linear", "--noise", "2", "--steps", "2", "--batch-size", "2", "--out", "run"]


def csvs():
    """The bytes of .csv files; they are made when they are wanted."""
    rows = TABLE.splitlines(keepends=True)
    return {
        "10^4 columns and one": lambda: b"age,job,ill," + b",".join(b"c%d" % i for i in range(10_000)) + b"\n",
        "10^5 columns": lambda: b",".join(b"c%d" % i for i in range(100_000)) + b"\n",
        "10^6 columns": lambda: b",".join(b"c%d" % i for i in range(1_000_000)) + b"\n",
        "10^5 columns without names": lambda: b"," * 100_000 + b"\n",
        "10^5 columns of one name": lambda: b"a," * 100_000 + b"a\n",
        "a line without an end": lambda: b"age,job,ill\n" + b"x" * 20_000_000,
        "a head without an end": lambda: b"age" * 8_000_000,
        "a quote without an end": lambda: b'age,job,ill\n"30,nurse,no\n' * 100,
        "a quoted cell of 2 MB": lambda: b'age,job,ill\n30,"' + b"n\n" * 1_000_000 + b'",no\n',
        "a cell of 200,000 letters": lambda: TABLE.replace(b"judge", b"j" * 200_000, 1),
        "a number of 100,000 digits": lambda: TABLE.replace(b"40", b"4" * 100_000, 1),
        "no number": lambda: TABLE.replace(b"40", b"forty", 1),
        "a number of another script's letters": lambda: TABLE.replace(b"40", b"4_0", 1),
        "a formula for a number": lambda: TABLE.replace(b"40", b"=40", 1),
        "a number of controls": lambda: TABLE.replace(b"40", b"\x1b[31m40", 1),
        "an unknown class": lambda: TABLE.replace(b"yes", b"\x1b[31m", 1),
        "a row too long": lambda: TABLE + b"1,2,3,4\n",
        "a row too short": lambda: TABLE + b"1,2\n",
        "a row of commas": lambda: TABLE + b"," * 1_000_000 + b"\n",
        "a NUL": lambda: TABLE.replace(b"nurse", b"nu\0se", 1) + b"\0\0\0\n",
        "bytes that are no UTF-8": lambda: TABLE.replace(b"nurse", b"\xff\xfe", 1),
        "UTF-16": lambda: TABLE.decode().encode("utf-16"),
        "carriage returns within": lambda: TABLE.replace(b"job", b"jo\rb", 1),
        "columns twice": lambda: TABLE.replace(b"job", b"age", 1),
        "columns of controls": lambda: TABLE.replace(b"job", b"\x1b]0;t\x07", 1),
        "columns from right to left": lambda: TABLE.replace(b"job", "\u202ebj".encode(), 1),
        "only the head": lambda: rows[0],
        "nothing": lambda: b"",
        "a byte order mark alone": lambda: b"\xef\xbb\xbf",
        "10^5 empty lines": lambda: rows[0] + b"\n" * 100_000,
        "an archive": lambda: npz_bytes(x=np.zeros((4, 2), "f4"), y=np.arange(4) % 2),
        "random bytes": lambda: np.random.default_rng(0).bytes(100_000),
    }


# --- .npz ------------------------------------------------------------------------------------------------------------


def npz_bytes(**arrays):
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def members(**contents):
    """An archive of these members."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return out.getvalue()


def npy(shape="(4,)", kind="'<f4'", content=b"\0" * 16, version=1, order="False"):
    """An .npy file with a head that says this."""
    head = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}".encode("latin1")
    head += b" " * (-(len(head) + 11) % 64) + b"\n"
    length = struct.pack("<H", len(head)) if version == 1 else struct.pack("<I", len(head))
    return b"\x93NUMPY" + bytes((version, 0)) + length + head + content


def zeros(count):
    """A deflated member of so many zeros, made a piece at a time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        with file.open("x.npy", "w", force_zip64=True) as member:
            member.write(npy(f"({count}, 1)", "'|u1'", b""))
            for _ in range(count >> 20):
                member.write(bytes(1 << 20))
        file.writestr("y.npy", npy("(4,)", "'<i8'", b"\0" * 32))
    return out.getvalue()


def lying(size):
    """An archive whose member says that it is of another size."""
    content = bytearray(members(**{"x.npy": npy("(4, 1)"), "y.npy": npy("(4,)", "'<i8'", b"\0" * 32)}))
    for sign, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = content.index(sign) + place
        content[at : at + 4] = struct.pack("<I", size)
    return bytes(content)


def npzs():
    """The bytes of .npz files."""
    y, good = npy("(4,)", "'<i8'", b"\0" * 32), np.zeros((4, 2), "f4")

    def with_x(**said):
        return members(**{"x.npy": npy(**said), "y.npy": y})

    def labels(*values):
        return npz_bytes(x=good, y=np.array(values))

    return {
        "a label of 10^8": lambda: labels(0, 1, 2, 10**8),
        "a label of 10^6": lambda: labels(0, 1, 2, 10**6),
        "a label of 2^62": lambda: labels(0, 1, 2, 2**62),
        "a label of 2^63 - 1": lambda: labels(0, 1, 2, 2**63 - 1),
        "a label below 0": lambda: labels(0, 1, 2, -1),
        "labels of uint64": lambda: npz_bytes(x=good, y=np.array([0, 1, 2, 2**64 - 1], np.uint64)),
        "labels of text": lambda: npz_bytes(x=good, y=np.array(list("abcd"))),
        "labels of dates": lambda: npz_bytes(x=good, y=np.array([0, 1, 2, 3], "M8[s]")),
        "labels of booleans": lambda: npz_bytes(x=good, y=np.array([True, False] * 2)),
        "labels of complex numbers": lambda: npz_bytes(x=good, y=np.zeros(4, complex)),
        "labels of nan": lambda: npz_bytes(x=good, y=np.full(4, np.nan)),
        "inputs of nan": lambda: npz_bytes(x=good * np.nan, y=np.arange(4) % 2),
        "inputs of infinity": lambda: npz_bytes(x=good + np.inf, y=np.arange(4) % 2),
        "inputs of 1e308": lambda: npz_bytes(x=np.full((4, 2), 1e308), y=np.arange(4) % 2),
        "inputs of objects": lambda: npz_bytes(x=np.array([{}, {}, {}, {}], object), y=np.arange(4) % 2),
        "inputs of fields": lambda: npz_bytes(x=np.zeros(4, [("a", "f4")]), y=np.arange(4) % 2),
        "inputs of whole numbers": lambda: npz_bytes(x=np.zeros((4, 2), int), y=np.arange(4) % 2),
        "inputs of nothing": lambda: npz_bytes(x=np.zeros((0, 2), "f4"), y=np.zeros(0, int)),
        "inputs of width 0": lambda: npz_bytes(x=np.zeros((4, 0), "f4"), y=np.arange(4) % 2),
        "inputs of one number": lambda: npz_bytes(x=np.float32(1), y=np.arange(4) % 2),
        "more labels than inputs": lambda: npz_bytes(x=good, y=np.arange(5) % 2),
        "only a part to test": lambda: npz_bytes(x=good, y=np.arange(4) % 2, test_x=good),
        "another array": lambda: npz_bytes(x=good, y=np.arange(4) % 2, z=good),
        "no arrays": lambda: members(),
        "a thousand arrays": lambda: members(**{f"a{i}.npy": b"" for i in range(1000)}),
        "a bomb of zeros": partial(zeros, BOMB),
        "a bomb in labels": lambda: members(**{"x.npy": npy("(4, 1)"), "y.npy": bytes(BOMB)}),
        "a size of 4 GB that is not there": lambda: lying(0xFFFFFFFE),
        "a size of nothing": lambda: lying(0),
        "a shape of 10^12": lambda: with_x(shape="(1000000000000,)"),
        "a shape of 10^100": lambda: with_x(shape=f"(1{'0' * 100},)"),
        "a shape below 0": lambda: with_x(shape="(-4,)"),
        "a shape of 2^63 twice": lambda: with_x(shape="(9223372036854775808, 9223372036854775808)"),
        "a shape of text": lambda: with_x(shape="'four'"),
        "a shape of truth": lambda: with_x(shape="(True, 4)"),
        "a head that has no end": lambda: with_x(shape="(4, 2), 'a': ("),
        "a head that is indented": lambda: with_x(shape="(4, 2),\n  'a': (\n 1), }\n  {"),
        "a shape of 100 dimensions": lambda: with_x(shape=f"({'1,' * 99}4)"),
        "a shape that is a call": lambda: with_x(shape="__import__('os').getpid()"),
        "a shape nested 3,000 deep": lambda: with_x(shape="(" * 3000 + ")" * 3000),
        "a type that is a call": lambda: with_x(kind="exit()"),
        "a type of objects": lambda: with_x(kind="'|O'"),
        "a type of 10^9 letters": lambda: with_x(kind="'<U1000000000'"),
        "a type of nothing": lambda: with_x(kind="'<U0'"),
        "a type there is not": lambda: with_x(kind="'<f9'"),
        "a head of a megabyte": lambda: with_x(version=2, kind="'<f4'" + " " * 1_000_000),
        "a version 9": lambda: with_x(version=9),
        "a member that is no array": lambda: members(**{"x.npy": b"hello", "y.npy": y}),
        "a member that is a pickle": lambda: members(**{"x.npy": b"\x80\x04]\x94.", "y.npy": y}),
        "a member that is empty": lambda: members(**{"x.npy": b"", "y.npy": y}),
        "a member without a name's end": lambda: members(x=b"no array", y=y),
        "a member above the folder": lambda: members(**{"../x.npy": npy("(4, 1)"), "y.npy": y}),
        "a member of controls": lambda: members(**{"\x1b[31m.npy": y, "y.npy": y}),
        "cut off": lambda: npz_bytes(x=good, y=np.arange(4) % 2)[:-40],
        "cut off at once": lambda: npz_bytes(x=good, y=np.arange(4) % 2)[:30],
        "a wrong checksum": lambda: _changed(npz_bytes(x=good, y=np.arange(4) % 2), 60),
        "an .npy file": npy,
        "a pickle": lambda: b"\x80\x04\x95\x0e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
        "nothing": lambda: b"",
    }  # fmt: skip


def _changed(content, at):
    return content[:at] + bytes((content[at] ^ 0xFF,)) + content[at + 1 :]


# --- parquet ---------------------------------------------------------------------------------------------------------


def parquet(columns, **settings):
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out, **settings)
    return out.getvalue()


def repeated(value, count):
    """One value in all rows, which takes no room in a file."""
    import pyarrow

    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(count, "i4")), pyarrow.array([value]))
    labels = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(count, "i4")), pyarrow.array(["no"]))
    numbers = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(count, "i4")), pyarrow.array([1.0]))
    return parquet({"age": numbers, "job": column, "ill": labels}, compression="zstd")


def parquets():
    """The bytes of .parquet files."""
    good = {"age": [30.0, 40.0, 50.0, 60.0], "job": ["nurse", "judge"] * 2, "ill": ["no", "yes"] * 2}
    return {
        "a bomb of 4 10^6 rows": lambda: repeated("nurse", 4_000_000),
        "a bomb of a megabyte a cell": lambda: repeated("n" * 1_000_000, 10_000),
        "a bomb of 100 kB a cell": lambda: repeated("n" * 100_000, 20_000),
        "10^4 columns and one": lambda: parquet({f"c{i}": [1] for i in range(10_001)}),
        "columns of lists": lambda: parquet(good | {"age": [[1], [2], [3], [4]]}),
        "columns of tables": lambda: parquet(good | {"age": [{"a": 1}] * 4}),
        "columns of bytes": lambda: parquet(good | {"age": [b"1", b"2", b"3", b"4"]}),
        "columns of nothing": lambda: parquet(good | {"ill": [None] * 4}),
        "no rows": lambda: parquet({name: cells[:0] for name, cells in good.items()}),
        "no columns": lambda: parquet({}),
        "columns of controls": lambda: parquet(good | {"\x1b[31m": [1, 2, 3, 4]}),
        "cut off": lambda: parquet(good)[:-20],
        "a foot of 2 GB": lambda: parquet(good)[:-8] + struct.pack("<I", 0x7FFFFFFF) + b"PAR1",
        "a foot below 0": lambda: parquet(good)[:-8] + struct.pack("<I", 0xFFFFFFFF) + b"PAR1",
        "a changed foot": lambda: _changed(parquet(good), -60 + len(parquet(good))),
        "a changed page": lambda: _changed(parquet(good), 30),
        "only its name": lambda: b"PAR1",
        "text": lambda: TABLE,
        "nothing": lambda: b"",
    }


# --- IDX, CIFAR, images: a folder each -------------------------------------------------------------------------------


def _mnist(folder, *, zipped=False, **changed):
    """A folder of MNIST with one of its files changed."""
    ends = {"images": "images-idx3-ubyte", "labels": "labels-idx1-ubyte"}
    for part, count in (("train", 12), ("t10k", 4)):
        contents = {"images": idx(pixels(count, 28, 28)), "labels": idx(np.arange(count) % 10)}
        for kind, content in contents.items():
            wanted = changed.get(kind, content) if part == "train" else content
            name = folder / f"{part}-{ends[kind]}"
            if zipped:
                wanted = wanted if kind in changed and part == "train" else packed(wanted)
                name = name.with_name(f"{name.name}.gz")
            name.write_bytes(wanted)


def _heads(*sizes, magic=None):
    return (struct.pack(">HBB", 0, 8, len(sizes)) if magic is None else magic) + struct.pack(f">{len(sizes)}I", *sizes)


def _gzip_of(head, count):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as file:
        file.write(head)
        for _ in range(count >> 20):
            file.write(bytes(1 << 20))
    return out.getvalue()


def idxs():
    """Folders of IDX files: functions that fill one."""
    images = idx(pixels(12, 28, 28))
    return {
        "4 10^9 rows": partial(_mnist, images=_heads(0xFFFFFFFF, 28, 28)),
        "10^6 rows": partial(_mnist, images=_heads(1_000_000, 28, 28)),
        "no rows": partial(_mnist, images=_heads(0, 28, 28)),
        "rows of 2^32 x 2^32": partial(_mnist, images=_heads(12, 0xFFFFFFFF, 0xFFFFFFFF)),
        "rows of 10 x 10": partial(_mnist, images=_heads(12, 10, 10) + bytes(1200)),
        "another kind": partial(_mnist, images=b"\0\0\x0d\3" + images[4:]),
        "another dimension": partial(_mnist, images=_heads(12, 28)),
        "a byte too few": partial(_mnist, images=images[:-1]),
        "a byte too many": partial(_mnist, images=images + b"\0"),
        "a head cut off": partial(_mnist, images=images[:7]),
        "fewer labels": partial(_mnist, labels=idx(np.arange(5))),
        "a label of 200": partial(_mnist, labels=idx(np.full(12, 200))),
        "labels of images": partial(_mnist, labels=images),
        "nothing": partial(_mnist, images=b""),
        "gz: a bomb of 20 MB": partial(_mnist, zipped=True, images=_gzip_of(_heads(12, 28, 28), 20 << 20)),
        "gz: a bomb as announced": partial(_mnist, zipped=True, images=_gzip_of(_heads(1_000_000, 28, 28), 20 << 20)),
        "gz: cut off": partial(_mnist, zipped=True, images=packed(images)[:-9]),
        "gz: a wrong checksum": partial(_mnist, zipped=True, images=_changed(packed(images), -6 + len(packed(images)))),
        "gz: no gz": partial(_mnist, zipped=True, images=images),
        "gz: nothing": partial(_mnist, zipped=True, images=b""),
        "a pipe": _mnist_pipe,
        "a device": _mnist_device,
    }


def _mnist_pipe(folder):
    _mnist(folder)
    (folder / "train-images-idx3-ubyte").unlink()
    os.mkfifo(folder / "train-images-idx3-ubyte")


def _mnist_device(folder):
    _mnist(folder)
    (folder / "train-images-idx3-ubyte").unlink()
    (folder / "train-images-idx3-ubyte").symlink_to("/dev/zero")


def cifars():
    """Folders of CIFAR-10."""
    return {
        "a tar bomb": _tar_bomb,
        "a tar of links": _tar_links,
        "a tar cut off": lambda folder: (folder / "cifar-10-binary.tar.gz").write_bytes(_gzip_of(b"x", 1 << 20)[:-20]),
        "a record too short": partial(_cifar, b"\0" * 3072),
        "a label of 10": partial(_cifar, b"\x0a" + b"\0" * 3072),
        "no records": partial(_cifar, b""),
        "parquet of text": lambda folder: [(folder / f"{p}.parquet").write_bytes(TABLE) for p in ("train", "test")],
        "parquet of other images": partial(_cifar_images, b"no image"),
        "parquet of an image of 10^9 pixels": partial(_cifar_images, b"P6 100000 100000 255\n"),
    }


def _cifar(first, folder):
    write_cifar_binary(folder)
    (folder / "data_batch_1.bin").write_bytes(first)


def _cifar_images(content, folder):
    for part in ("train", "test"):
        (folder / f"{part}.parquet").write_bytes(parquet({"img": [{"bytes": content}], "label": [1]}))


def _tar_bomb(folder):
    """An archive whose first member, which nobody wants, is that unpacks to far too much."""
    head = tarfile.TarInfo("other")
    head.size = BOMB
    (folder / "cifar-10-binary.tar.gz").write_bytes(_gzip_of(head.tobuf(), BOMB))


def _tar_links(folder):
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as packed_files:
        for name in ("data_batch_1.bin", "test_batch.bin"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            packed_files.addfile(link)


def pictures():
    """Folders of images, with one that is hostile."""
    good = image(pixels(6, 5, 3)[..., :3].reshape(6, 5, 3))
    return {
        "a pipe": lambda folder: os.mkfifo(folder / "cat" / "b.png"),
        "a device": lambda folder: (folder / "cat" / "b.png").symlink_to("/dev/zero"),
        "a link to itself": lambda folder: (folder / "cat" / "b.png").symlink_to("b.png"),
        "a folder": lambda folder: (folder / "cat" / "b.png").mkdir(),
        "nothing": partial(_picture, b""),
        "text": partial(_picture, b"no image"),
        "cut off": partial(_picture, good[:-20]),
        "a head alone": partial(_picture, good[:33]),
        "another size": partial(_picture, image(pixels(7, 5, 3).reshape(7, 5, 3))),
        "16 bits": partial(_picture, image(pixels(6, 5).astype(np.uint16))),
        "10^10 pixels, PPM": partial(_picture, b"P6 100000 100000 255\n" + b"\0" * 100),
        "2^31 pixels wide, PGM": partial(_picture, b"P5 2147483647 2147483647 255\n"),
        "10^10 pixels, BMP": partial(_picture, b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 100000, 100000,
                                                                   1, 24, 0, 0, 0, 0, 0, 0)),
        "a PNG of 30,000 x 30,000": partial(_picture, _png(30_000, 30_000)),
        "a PNG of 2^31 x 2^31": partial(_picture, _png(2**31 - 1, 2**31 - 1)),
        "a PNG of no width": partial(_picture, _png(0, 5)),
        "a program for a printer": partial(_picture, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\nshowpage\n"),
        "a name of controls": lambda folder: (folder / "cat" / "\x1b[31m.png").write_bytes(b"no image"),
        "a name that is no UTF-8": lambda folder: (folder / "cat" / "\udcff.png").write_bytes(b"no image"),
        "an empty class": lambda folder: (folder / "bird").mkdir(),
        "one class": lambda folder: [p.unlink() for p in (folder / "dog").iterdir()] + [(folder / "dog").rmdir()],
    }  # fmt: skip


def _picture(content, folder):
    (folder / "cat" / "b.png").write_bytes(content)


def _png(width, height):
    import zlib

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(bytes(10))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + ends
