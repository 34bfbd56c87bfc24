"""Archives from strangers: every layout that tools write is read, nothing escapes or explodes."""

import io
import os
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
import zstandard
from PIL import Image

from datasets import DataError, load_manifest


def png_bytes(seed):
    noise = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()


MEMBERS = {
    f"{name}/{n}.png": png_bytes(n + 10 * c) for c, name in enumerate("ab") for n in range(3)
}


def write_zip(path, members=MEMBERS, *, prefix="", **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(prefix + name, data)
    return path


def tar_bytes(members=MEMBERS, *, prefix="", extra=(), tar_format=tarfile.PAX_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra:
            archive.addfile(info)
    return buffer.getvalue()


def compress(data, suffix):
    import bz2
    import gzip
    import lzma

    return {
        ".tar": lambda data: data, ".tar.gz": gzip.compress, ".tar.bz2": bz2.compress,
        ".tar.xz": lzma.compress, ".tar.zst": zstandard.compress,
    }[suffix](data)  # fmt: skip


def load(path, tmp_path, **options):
    return load_manifest(path, seed=0, cache_dir=tmp_path / "cache", **options)


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("prefix", ["", "trainset/", "./", "a long/way/down/"])
def test_a_zip_with_or_without_outer_folders_gives_the_same_manifest(prefix, tmp_path):
    manifest = load(write_zip(tmp_path / "food.zip", prefix=prefix), tmp_path)
    assert manifest.name == "food"
    assert [f"{entry.class_name}/{entry.path.name}" for entry in manifest.entries] == list(MEMBERS)
    assert [entry.path.read_bytes() for entry in manifest.entries] == list(MEMBERS.values())


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"])
@pytest.mark.parametrize(
    "tar_format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]
)
def test_every_kind_of_tar_gives_the_same_manifest(suffix, tar_format, tmp_path):
    path = tmp_path / f"food{suffix}"
    path.write_bytes(compress(tar_bytes(prefix="./food/", tar_format=tar_format), suffix))
    manifest = load(path, tmp_path)
    assert [entry.path.read_bytes() for entry in manifest.entries] == list(MEMBERS.values())


def test_the_content_tells_what_an_archive_is_not_its_name(tmp_path):
    path = write_zip(tmp_path / "food.tar.gz")
    assert len(load(path, tmp_path).entries) == 6


def test_what_macos_and_windows_add_is_left_out(tmp_path):
    junk = {"__MACOSX/a/._0.png": b"x", "a/.DS_Store": b"x", "a/Thumbs.db": b"x", ".git/a/b": b"x"}
    manifest = load(write_zip(tmp_path / "food.zip", MEMBERS | junk), tmp_path)
    assert manifest.classes == ("a", "b")
    assert manifest.quarantined == ()


def write_raw_names(path, names, *, flag=0, extra=None):
    """A zip whose names are these bytes, as the tools of other systems write them."""
    out, directory = b"", b""
    for number, name in enumerate(names):
        body, offset = png_bytes(number), len(out)
        more = extra(name) if extra else b""
        common = struct.pack(
            "<HHHHHLLLHH",
            20,
            flag,
            0,
            0,
            0x5A21,
            zlib.crc32(body),
            len(body),
            len(body),
            len(name),
            len(more),
        )
        out += b"PK\3\4" + common + name + more + body
        directory += (
            b"PK\1\2\x14\3" + common + struct.pack("<HHHLL", 0, 0, 0, 0, offset) + name + more
        )
    end = struct.pack("<HHHHLLH", 0, 0, len(names), len(names), len(directory), len(out), 0)
    path.write_bytes(out + directory + b"PK\5\6" + end)


@pytest.mark.parametrize(
    ("encoding", "classes"),
    [
        ("gbk", ("北京烤鸭", "麻婆豆腐")),  # Windows, Chinese
        ("shift_jis", ("お好み焼き", "たこ焼き")),  # Windows, Japanese
        ("cp437", ("crème", "müsli")),  # MS-DOS and Windows Explorer, Western
        ("cp1252", ("crème", "müsli")),  # other Windows tools, Western
        ("utf-8", ("crème", "北京烤鸭")),  # macOS and Linux tools that do not set the flag
    ],
)
def test_zip_names_in_the_code_page_of_another_system_are_read(encoding, classes, tmp_path):
    raw = [f"{name}/photo{n}.png".encode(encoding) for name in classes for n in range(2)]
    write_raw_names(tmp_path / "food.zip", raw)
    assert set(load(tmp_path / "food.zip", tmp_path).classes) == set(classes)


def test_the_unicode_name_field_of_info_zip_wins(tmp_path):
    def unicode_path(name):
        text = name.replace(b"?", "é".encode()).replace(b"\x81", b"")
        field = b"\1" + struct.pack("<L", zlib.crc32(name)) + text
        return struct.pack("<HH", 0x7075, len(field)) + field

    raw = [
        f"cr?me{c}".encode() + f"\x81/photo{n}.png".encode("latin-1")
        for c in "ab"
        for n in range(2)
    ]
    write_raw_names(tmp_path / "food.zip", raw, extra=unicode_path)
    assert load(tmp_path / "food.zip", tmp_path).classes == ("crémea", "crémeb")


def test_decomposed_names_of_macos_become_composed(tmp_path):
    members = {
        f"{name}/{n}.png": png_bytes(hash_of(name) + n)
        for name in ("cafe\u0301", "tea")
        for n in range(2)
    }
    assert load(write_zip(tmp_path / "f.zip", members), tmp_path).classes == ("caf\u00e9", "tea")


def hash_of(name):
    return zlib.crc32(name.encode()) % 1000


def test_backslashes_of_windows_zips_part_folders(tmp_path):
    write_raw_names(
        tmp_path / "food.zip", [f"{c}\\photo{n}.png".encode() for c in "ab" for n in range(2)]
    )
    assert load(tmp_path / "food.zip", tmp_path).classes == ("a", "b")


def test_tar_names_in_another_code_page_are_read(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="gbk"
    ) as archive:
        for number, name in enumerate(["北京/1.png", "北京/2.png", "上海/1.png"]):
            info = tarfile.TarInfo(name)
            data = png_bytes(number)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    (tmp_path / "food.tar").write_bytes(buffer.getvalue())
    assert set(load(tmp_path / "food.tar", tmp_path).classes) == {"北京", "上海"}


ESCAPES = [
    "../evil.png",
    "a/../../evil.png",
    "/evil.png",
    "C:/evil.png",
    "C:evil.png",
    "..\\evil.png",
    "a/..",
    "\\evil.png",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_zip_member_that_leads_out_refuses_the_archive(name, tmp_path):
    box = tmp_path / "box"
    box.mkdir()
    write_zip(box / "food.zip", MEMBERS | {name: png_bytes(99)})
    with pytest.raises(DataError, match="leads out of the archive") as error:
        load(box / "food.zip", box)
    assert "\n" not in str(error.value)
    assert not [name for name in files_below(tmp_path) if "evil" in name]
    assert not os.path.exists("/evil.png")


@pytest.mark.parametrize("name", ESCAPES[:5])
def test_a_tar_member_that_leads_out_refuses_the_archive(name, tmp_path):
    box = tmp_path / "box"
    box.mkdir()
    (box / "food.tar").write_bytes(tar_bytes(MEMBERS | {name: png_bytes(99)}))
    with pytest.raises(DataError, match="leads out of the archive"):
        load(box / "food.tar", box)
    assert not [name for name in files_below(tmp_path) if "evil" in name]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_a_tar_with_links_or_devices_is_refused(kind, tmp_path):
    info = tarfile.TarInfo("a/link.png")
    info.type = kind
    info.linkname = "/etc/passwd"
    (tmp_path / "food.tar").write_bytes(tar_bytes(extra=[info]))
    with pytest.raises(DataError, match=r"'a/link.png' is a link, device or sparse"):
        load(tmp_path / "food.tar", tmp_path)


def test_a_zip_with_a_symbolic_link_is_refused(tmp_path):
    info = zipfile.ZipInfo("a/link.png")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(write_zip(tmp_path / "food.zip"), "a") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match=r"'a/link.png' is a link"):
        load(tmp_path / "food.zip", tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_member_twice_is_refused(tmp_path):
    with zipfile.ZipFile(write_zip(tmp_path / "food.zip"), "a") as archive:
        archive.writestr("a/0.png", png_bytes(5))
    with pytest.raises(DataError, match=r"holds 'a/0.png' twice"):
        load(tmp_path / "food.zip", tmp_path)


def test_an_encrypted_zip_is_refused(tmp_path):
    data = bytearray(write_zip(tmp_path / "food.zip").read_bytes())
    for signature, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        start = data.find(signature)
        while start >= 0:
            data[start + offset] |= 1
            start = data.find(signature, start + 4)
    (tmp_path / "food.zip").write_bytes(data)
    with pytest.raises(DataError, match="encrypted; unpack it yourself"):
        load(tmp_path / "food.zip", tmp_path)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    members = MEMBERS | {f"a/zero{n}.png": bytes(2**26) for n in range(5)}
    write_zip(tmp_path / "food.zip", members, compression=zipfile.ZIP_DEFLATED)
    assert (tmp_path / "food.zip").stat().st_size < 2**20
    with pytest.raises(DataError, match="a decompression bomb, not photos") as error:
        load(tmp_path / "food.zip", tmp_path)
    assert "\n" not in str(error.value)
    assert not [name for name in files_below(tmp_path / "cache") if name.endswith(".png")]


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.zst"])
def test_a_tar_bomb_is_stopped_while_it_unpacks(suffix, tmp_path):
    members = MEMBERS | {f"a/zero{n}.png": bytes(2**26) for n in range(5)}
    (tmp_path / f"food{suffix}").write_bytes(compress(tar_bytes(members), suffix))
    with pytest.raises(DataError, match="a decompression bomb, not photos"):
        load(tmp_path / f"food{suffix}", tmp_path)
    assert not [name for name in files_below(tmp_path / "cache") if name.endswith(".png")]


def test_a_tar_header_that_asks_for_gigabytes_is_refused(tmp_path):
    info = tarfile.TarInfo("././@PaxHeader")
    info.type = tarfile.XHDTYPE
    info.size = 2**27
    data = info.tobuf(tarfile.USTAR_FORMAT) + bytes(2**27)
    (tmp_path / "food.tar.gz").write_bytes(compress(data, ".tar.gz"))
    with pytest.raises(DataError, match="member header too long"):
        load(tmp_path / "food.tar.gz", tmp_path)


@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.98])
def test_a_cut_archive_is_one_clear_line(suffix, share, tmp_path):
    path = tmp_path / f"food{suffix}"
    if suffix == ".zip":
        write_zip(path)
    else:
        path.write_bytes(compress(tar_bytes(), suffix))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    if suffix == ".tar" and share > 0.9:
        # Only the padding at the end was cut.
        assert len(load(path, tmp_path).entries) == 6
        return
    with pytest.raises(DataError) as error:
        load(path, tmp_path)
    assert "\n" not in str(error.value)


def test_a_zip_with_a_damaged_member_is_refused(tmp_path):
    data = bytearray(write_zip(tmp_path / "food.zip").read_bytes())
    data[data.find(MEMBERS["b/1.png"]) + 100] ^= 0xFF
    (tmp_path / "food.zip").write_bytes(data)
    with pytest.raises(DataError, match="damaged archive: Bad CRC-32"):
        load(tmp_path / "food.zip", tmp_path)


def test_archives_within_an_archive_are_explained(tmp_path):
    inner = write_zip(tmp_path / "inner.zip").read_bytes()
    write_zip(tmp_path / "outer.zip", {"inner.zip": inner})
    with pytest.raises(DataError, match="no classes"):
        load(tmp_path / "outer.zip", tmp_path)
    write_zip(tmp_path / "mixed.zip", MEMBERS | {"a/inner.zip": inner})
    assert (
        load(tmp_path / "mixed.zip", tmp_path)
        .quarantined[0]
        .reason.startswith("not an image: an archive")
    )


def test_an_empty_archive_is_refused(tmp_path):
    with pytest.raises(DataError, match="the archive holds no files"):
        load(write_zip(tmp_path / "food.zip", {}), tmp_path)


def test_a_second_load_unpacks_nothing(tmp_path):
    path = write_zip(tmp_path / "food.zip")
    first = load(path, tmp_path)
    stages = []
    second = load(path, tmp_path, progress=lambda stage, done, total: stages.append(stage))
    assert "unpacking" not in stages
    assert second.sha256 == first.sha256


def test_a_changed_archive_is_unpacked_again(tmp_path):
    path = write_zip(tmp_path / "food.zip")
    load(path, tmp_path)
    write_zip(path, MEMBERS | {"a/new.png": png_bytes(55)})
    os.utime(path, ns=(1, 1))
    assert len(load(path, tmp_path).entries) == 7


def test_an_unpacked_file_that_went_missing_is_unpacked_again(tmp_path):
    path = write_zip(tmp_path / "food.zip")
    load(path, tmp_path).entries[0].path.unlink()
    assert len(load(path, tmp_path).entries) == 6


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz"])
def test_after_a_full_disk_unpacking_goes_on_where_it_stopped(suffix, tmp_path, monkeypatch):
    from datasets import archives

    path = tmp_path / f"food{suffix}"
    if suffix == ".zip":
        write_zip(path)
    else:
        path.write_bytes(compress(tar_bytes(), suffix))
    copied = []

    def copy(source, target, length):
        if len(copied) == 3:
            target.write(b"half")
            raise OSError(28, "No space left on device")
        copied.append(source)
        target.write(source.read())

    monkeypatch.setattr(archives.shutil, "copyfileobj", copy)
    with pytest.raises(DataError, match="is full; make room for at least"):
        load(path, tmp_path)
    copied.clear()
    monkeypatch.setattr(
        archives.shutil, "copyfileobj", lambda s, t, n: (copied.append(s), t.write(s.read()))
    )
    manifest = load(path, tmp_path)
    assert len(copied) == 3
    assert [entry.path.read_bytes() for entry in manifest.entries] == list(MEMBERS.values())


def test_an_archive_that_cannot_fit_is_refused_with_the_bytes_it_needs(tmp_path, monkeypatch):
    from datasets import archives

    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda path: usage)
    needed = sum(len(data) for data in MEMBERS.values())
    with pytest.raises(DataError, match=f"unpacking needs {needed:,} bytes.*100 free"):
        load(write_zip(tmp_path / "food.zip"), tmp_path)


def test_a_read_only_source_works(tmp_path):
    (tmp_path / "source").mkdir()
    path = write_zip(tmp_path / "source" / "food.zip")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        assert len(load(path, tmp_path).entries) == 6
        assert files_below(path.parent) == ["food.zip"]
    finally:
        path.parent.chmod(0o755)
