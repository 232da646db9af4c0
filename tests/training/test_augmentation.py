import pytest
import torch
from torch.nn import functional as F

from discreet import (
    ConfigError,
)
from discreet.training.augmentation import Images


def test_moved_images_are_shifted_originals_with_zeros_moving_in():
    torch.manual_seed(3)
    images = torch.rand(300, 2, 5, 4) + 1  # no zeros of their own
    moved = Images(shift=2)(images)
    padded = F.pad(images, (2, 2, 2, 2))
    seen = set()
    for before, after in zip(padded, moved, strict=True):
        places = [
            (down, right)
            for down in range(5)
            for right in range(5)
            if torch.equal(after, before[:, down : down + 5, right : right + 4])
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) == 25  # every move happens


def test_flipped_images_are_originals_or_mirrored_each_by_its_own_coin():
    torch.manual_seed(3)
    images = torch.rand(200, 1, 3, 3)
    changed = Images(flip=True)(images)
    same = (changed == images).flatten(1).all(1)
    mirrored = (changed == images.flip(3)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())
    assert 60 < int(mirrored.sum()) < 140
    assert torch.equal(Images()(images), images)


def test_only_images_are_changed_and_only_by_whole_pixels():
    with pytest.raises(ConfigError, match="are no images"):
        Images(flip=True)(torch.zeros(4, 5))
    with pytest.raises(ConfigError, match="shift is -1"):
        Images(shift=-1)
