"""Public features: functions of one image each, without private data; and their cache."""

import math

import numpy as np
import pytest
import torch

from discreet import ConfigError
from discreet.features import Patches, Rehearsed, Scattering, Upright, dead_leaves, extract
from discreet.features.patches import dictionary

SMALL = Patches(atoms=12, size=3, grid=2, images=20)
EXTRACTORS = [
    SMALL,
    Patches(atoms=12, size=3, grid=2, images=20, mirror=True, padding=1),
    Scattering(1, 4),
    Scattering(),
    Rehearsed(SMALL, 0.3, channels=9, images=12),
    Upright(SMALL, spread=0.5),
    Rehearsed(Upright(Scattering(1, 4)), 0.3, images=12),
]


@pytest.fixture
def images():
    return torch.rand(11, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def test_images_of_nothing_are_the_same_for_the_same_seed():
    made = dead_leaves(3, side=16)
    assert made.shape == (3, 3, 16, 16)
    assert 0 <= made.min() < 60
    assert 200 < made.max() <= 255
    assert torch.equal(made, dead_leaves(3, side=16))
    assert not torch.equal(made, dead_leaves(3, side=16, seed=1))


def test_a_dictionary_has_filters_that_a_constant_patch_does_not_excite():
    atoms = dictionary(SMALL, 1)
    assert atoms.shape == (12, 9)
    assert torch.equal(atoms, dictionary.__wrapped__(SMALL, 1))
    encode = SMALL.encoder((1, 12, 12))
    assert encode(torch.full((1, 1, 12, 12), 0.7)).abs().max() == 0


def test_patches_are_encoded_as_they_are_described():
    """One place at a time, in plain arithmetic."""
    image = torch.rand(1, 1, 5, 4, generator=torch.Generator().manual_seed(1))
    patches = Patches(atoms=7, size=3, grid=1, images=20, threshold=0.4)
    atoms, total, weights = dictionary(patches, 1), torch.zeros(14), 0.0
    for row in range(3):
        for column in range(2):
            seen = image[0, 0, row : row + 3, column : column + 3].flatten() * 255
            seen = (seen - seen.mean()) / torch.sqrt(seen.var() + 10)
            products = atoms @ seen
            weight = (1 - abs(row - 1) / 4.5) * (1 - abs(column - 0.5) / 3)
            total += weight * torch.cat([(products - 0.4).relu(), (-products - 0.4).relu()])
            weights += weight
    assert torch.allclose(patches.encoder((1, 5, 4))(image)[0, 0], total / weights, atol=1e-5)


def test_features_of_images_of_nothing_are_white_where_these_were_rehearsed():
    rehearsed = Rehearsed(SMALL, 0.5, images=300)
    made = dead_leaves(300, side=12, seed=1).mean(1, keepdim=True) / 255
    rows = rehearsed.encoder((1, 12, 12))(made)
    assert rows.shape == (300, 4, 24)
    assert torch.allclose(rows.flatten(1).norm(dim=1), torch.full((300,), math.sqrt(4 * 24)), rtol=1e-3)
    found = torch.linalg.eigvalsh(torch.einsum("npc,npd->cd", rows, rows) / 1200)
    plain = torch.linalg.eigvalsh(torch.einsum("npc,npd->cd", *[SMALL.encoder((1, 12, 12))(made)] * 2) / 1200)
    assert found.max() / found.mean() < 2
    assert plain.max() / plain.mean() > 10


def test_mirrored_images_have_the_same_features(images):
    encode = EXTRACTORS[1].encoder((1, 12, 12))
    assert torch.allclose(encode(images), encode(images.flip(3)), atol=1e-5)


def test_half_precision_is_nearly_the_same(images):
    exact = SMALL.encoder((1, 12, 12))(images)
    rough = Patches(atoms=12, size=3, grid=2, images=20, precision="bfloat16").encoder((1, 12, 12))(images)
    assert (exact - rough).norm() < 0.02 * exact.norm()


def test_a_constant_image_scatters_nowhere():
    found = Scattering().encoder((1, 28, 28))(torch.full((1, 1, 28, 28), 0.3))
    assert found.shape == (1, 49, 81)
    assert torch.allclose(found[0, :, 0], torch.full((49,), 0.3), atol=1e-6)
    assert found[0, :, 1:].abs().max() < 1e-6


def test_scattering_is_taken_to_its_power(images):
    plain, rooted = (made.encoder((1, 12, 12))(images) for made in (Scattering(), Scattering(power=0.5)))
    assert torch.allclose(rooted.square(), plain, atol=1e-6)
    assert (rooted - plain).abs().max() > 0.1


def test_a_wave_is_seen_by_the_wavelets_that_go_its_way():
    across = torch.cos(torch.arange(32) * math.pi * 3 / 4).expand(1, 1, 32, 32)
    found = Scattering().encoder((1, 32, 32))(across)[0, :, 1:17].mean(0).view(2, 8)
    turned = Scattering().encoder((1, 32, 32))(across.transpose(2, 3))[0, :, 1:17].mean(0).view(2, 8)
    assert found[0].argmax() != turned[0].argmax()
    assert (int(found[0].argmax()) - int(turned[0].argmax())) % 8 == 4  # a quarter turn of eight directions in a half
    assert found[0].max() > 5 * found[1].max()  # at the finer scale


def test_scattering_is_that_of_kymatio(images):
    module = "kymatio.scattering2d.frontend.torch_frontend"  # kymatio.torch imports what scipy no longer has
    kymatio = pytest.importorskip(module, reason="kymatio is not installed", exc_type=ImportError)
    image = torch.rand(2, 1, 28, 28)
    theirs = kymatio.ScatteringTorch2D(J=2, shape=(28, 28))(image).reshape(2, 81, 49).transpose(1, 2)
    order = [0, *range(1, 9), *range(73, 81), *range(9, 73)]  # kymatio has the second order last
    ours = Scattering().encoder((1, 28, 28))(image)[:, :, order]
    whole, coarser = slice(0, 9), slice(9, 81)
    assert torch.allclose(ours[:, :, whole], theirs[:, :, whole], atol=1e-4)
    # there kymatio cuts high frequencies of a filter off, which are folded here
    assert (ours - theirs)[:, :, coarser].norm() < 0.01 * theirs[:, :, coarser].norm()


def _moments(images):
    """The middles of the mass and its second moments, x before y, where the image reaches from -1 to 1."""
    y, x = (torch.linspace(-1 + 1 / side, 1 - 1 / side, side) for side in images.shape[2:])
    places = torch.stack([x.expand(len(y), -1), y[:, None].expand(-1, len(x))])
    mass = images[:, 0] / images[:, 0].sum((1, 2), keepdim=True)
    middle = torch.einsum("nyx,cyx->nc", mass, places)
    return middle, torch.einsum("nyx,cyx,dyx->ncd", mass, places, places) - middle[:, :, None] * middle[:, None]


@pytest.fixture
def strokes():
    """Soft ellipses that lean, of several sizes and beside the middle."""
    across, down = torch.linspace(-1, 1, 28), torch.linspace(-1, 1, 28)[:, None]
    made = []
    for slope, x, y, wide, high in [
        (0.4, 0.1, 0.1, 0.28, 0.4),
        (-0.3, -0.1, 0.05, 0.24, 0.5),
        (0.2, 0.0, -0.1, 0.38, 0.45),
    ]:
        beside = (across - x - slope * (down - y)) / wide
        made.append(torch.exp(-(beside.square() + ((down - y) / high).square())))
    return torch.stack(made)[:, None]


def test_an_upright_image_leans_no_more_and_is_in_the_middle(strokes):
    _, before = _moments(strokes)
    assert before[:, 0, 1].abs().min() > 0.005
    middle, after = _moments(Upright(SMALL).turned(strokes))
    assert middle.abs().max() < 0.01
    assert (after[:, 0, 1].abs() < 0.1 * before[:, 0, 1].abs()).all()
    assert torch.allclose(after[:, 1, 1], before[:, 1, 1], rtol=0.05)  # as high as before
    _, half = _moments(Upright(SMALL, shear=0.5).turned(strokes))
    assert torch.allclose(half[:, 0, 1], before[:, 0, 1] / 2, rtol=0.1)


def test_spreads_are_made_the_same_as_far_as_is_said(strokes):
    ends = []
    for spread in (0.0, 0.5, 1.0):
        _, found = _moments(Upright(SMALL, spread=spread).turned(strokes))
        widths = found[:, 0, 0].sqrt()
        ends.append(float(widths.max() / widths.min()))
    assert ends[0] > 1.5
    assert ends[1] == pytest.approx(math.sqrt(ends[0]), rel=0.05)
    assert ends[2] < 1.05


def test_an_image_that_is_upright_stays_and_so_does_an_empty_one(strokes):
    once = Upright(SMALL).turned(strokes)
    again = Upright(SMALL).turned(once)
    assert (again - once).norm() < 0.03 * once.norm()
    assert Upright(SMALL, spread=0.5).turned(torch.zeros(2, 3, 9, 7)).abs().max() == 0


@pytest.mark.parametrize("extractor", EXTRACTORS, ids=str)
def test_features_depend_on_their_own_image_alone(extractor, images):
    """Whatever stands beside it, and by however many threads."""
    found = extract(extractor, images, keep=False, workers=2)
    assert found.shape == (11, *extractor.shape((1, 12, 12)))
    others = images.clone()
    others[1:] = torch.rand(10, 1, 12, 12)
    again = extract(extractor, others[:5], keep=False, workers=1)
    assert torch.equal(found[:1], again[:1])
    assert not torch.allclose(found[1:5].float(), again[1:5].float(), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("extractor", EXTRACTORS, ids=str)
def test_an_image_that_is_left_out_moves_no_bit_of_the_others(extractor, images):
    found = extract(extractor, images, keep=False).values
    for left_out in range(len(images)):
        rows = [row for row in range(len(images)) if row != left_out]
        assert np.array_equal(extract(extractor, images[rows], keep=False).values, found[rows])


def test_features_are_kept_for_the_same_images_and_settings(images, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[tuple[int, int]] = []
    first = extract(SMALL, images, progress=lambda done, total: seen.append((done, total))).values.copy()
    assert seen == [(11, 11)]
    (kept,) = (tmp_path / "discreet" / "features").iterdir()
    assert kept.stat().st_mode & 0o077 == 0  # nobody else may read it
    again = extract(SMALL, images, progress=lambda done, total: pytest.fail("they were computed again"))
    assert np.array_equal(first, again.values)
    extract(SMALL, images + 0.5, progress=lambda done, total: seen.append((done, total)))
    extract(Scattering(1), images, progress=lambda done, total: seen.append((done, total)))
    assert len(seen) == 3
    kept.unlink()
    kept.write_bytes(b"damaged")
    assert np.array_equal(extract(SMALL, images).values, first)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Patches(atoms=0), "atoms"),
        (lambda: Patches(threshold=-1.0), "threshold"),
        (lambda: Patches(precision="float8"), "'float32' or 'bfloat16'"),
        (lambda: Patches(size=6, grid=3).shape((1, 7, 7)), "2 places"),
        (lambda: Patches().shape((64,)), "grey or colour"),
        (lambda: Scattering().shape((1, 4, 4)), "more than 4 x 4"),
        (lambda: Scattering(power=0.0), "power"),
        (lambda: Scattering(power=2.0), "at most 1"),
        (lambda: Rehearsed(SMALL, 1.5), "from 0 to 1"),
        (lambda: Rehearsed(SMALL, channels=25).shape((1, 12, 12)), "there are 24"),
        (lambda: Upright(SMALL, shear=-0.1), "shear"),
        (lambda: Upright(SMALL, spread=1.1), "from 0 to 1"),
        (lambda: extract(SMALL, torch.zeros(3, 64)), "images"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
