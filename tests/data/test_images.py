"""Folders of images."""

import numpy as np
import pytest
from data_files import error_of, image, pixels, rows_of, write_images

from discreet.data import load


def test_a_folder_of_images_by_class_is_split(tmp_path):
    folder = write_images(tmp_path / "pets")
    data = load(str(folder))
    assert (data.shape, data.classes) == ((3, 6, 5), 2)
    assert (len(data.train[1]), len(data.test[1])) == (8, 2)
    expected = [(*p.transpose(2, 0, 1).ravel().tolist(), n) for n in (0, 1) for p in pixels(5, 6, 5, 3, seed=n)]
    found = [(*(round(255 * v) for v in row[:-1]), int(row[-1])) for row in rows_of(data)]
    assert sorted(found) == sorted(expected)
    assert load(str(folder), test_fraction=0).test is None
    assert load(str(folder), seed=1).train[1].tolist() != data.train[1].tolist()


def test_train_and_test_folders_stay_apart(tmp_path):
    write_images(tmp_path / "pets" / "train", count=3)
    write_images(tmp_path / "pets" / "test", ("dog",), count=2)
    data = load(str(tmp_path / "pets"))
    assert sorted(data.train[1].tolist()) == [0, 0, 0, 1, 1, 1]
    assert data.test[1].tolist() == [1, 1]


def test_grey_images_have_one_channel_and_mixed_ones_three(tmp_path):
    folder = write_images(tmp_path / "pets", shape=(4, 4))
    assert load(str(folder)).shape == (1, 4, 4)
    (folder / "cat" / "colour.png").write_bytes(image(pixels(1, 4, 4, 3)[0]))
    assert load(str(folder)).shape == (3, 4, 4)


def test_other_files_in_a_folder_of_images_are_left_alone(tmp_path):
    folder = write_images(tmp_path / "pets")
    (folder / ".hidden").mkdir()
    (folder / "cat" / ".x.png").write_text("")
    (folder / "cat" / "readme.txt").write_text("")
    assert len(rows_of(load(str(folder)))) == 10


def test_a_limit_of_images_is_a_mix_of_classes(tmp_path):
    data = load(str(write_images(tmp_path / "pets", count=40, shape=(2, 2))), limit=20)
    assert len(data.train[1]) == 20
    assert set(data.train[1].tolist()) == {0, 1}


def break_folder(folder, how):
    file = folder / "cat" / "1.png"
    if how == "nonsense":
        file.write_text("nonsense")
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-40])
    elif how == "size":
        file.write_bytes(image(pixels(1, 6, 6, 3)[0]))
    elif how == "deep":
        file.write_bytes(image(np.zeros((6, 5), np.uint16)))
    elif how == "empty class":
        (folder / "eel").mkdir()
        return folder / "eel"
    elif how == "one class":
        (folder / "dog").rename(folder.parent / "dog")
        return folder
    elif how == "test class":
        write_images(folder.parent / "new" / "train")
        write_images(folder.parent / "new" / "test", ("eel",))
        return folder.parent / "new" / "test"
    elif how == "nothing":
        (folder.parent / "new").mkdir()
        return folder.parent / "new"
    return file


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nonsense", "cannot be read: cannot identify image"),
        ("cut", "cannot be read"),
        ("size", "make all images one size"),
        ("deep", "more than 8 bits"),
        ("empty class", "has no images"),
        ("one class", "has 1 folders of images"),
        ("test class", "has classes that"),
        ("nothing", "has no images in folders by class"),
    ],
)
def test_bad_folders_of_images_are_named(how, words, tmp_path):
    folder = write_images(tmp_path / "pets")
    named = break_folder(folder, how)
    message = error_of(tmp_path / "new" if (tmp_path / "new").exists() else folder)
    assert words in message
    assert str(named if how != "size" else folder) in message
    assert ("cannot be read" in message) == (how in ("nonsense", "cut"))
