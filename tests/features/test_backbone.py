"""Features of public networks: of one example alone, bit for bit, and what they rest on is in the guarantee."""

from dataclasses import replace

import pytest
import torch
from public_networks import IMAGE, LENGTH, image_body, stand_in

import discreet
from discreet import ConfigError
from discreet.features import Backbone, extract
from discreet.features.extraction import _alone_in_company
from discreet.models.pretrained import public_network
from discreet.runs import config
from discreet.runs.run import resume, train

IMAGES = Backbone(side=32, mirror=True)
BESIDE = replace(IMAGES, after=(2, 3))


def test_features_are_those_of_the_network_averaged_over_cells_and_mirror_images():
    body = image_body()
    images = torch.rand(2, *IMAGE)
    with torch.no_grad():
        plain = replace(IMAGES, mirror=False).encoder_of(body)(images)
        both = IMAGES.encoder_of(body)(images)
        mirrored = replace(IMAGES, mirror=False).encoder_of(body)(images.flip(3))
        cells = replace(IMAGES, side=64, grid=2).encoder_of(body)(images)
    assert plain.shape == both.shape == (2, 1, 64)
    torch.testing.assert_close(both, (plain + mirrored) / 2)
    assert cells.shape == (2, 4, 64)


def test_maps_after_blocks_stand_beside_the_last_one_with_their_length(monkeypatch):
    body = stand_in(monkeypatch, "efficientnet-lite0")
    backbone = Backbone(side=64, grid=2, after=(2, 5), weight=0.5)
    images = torch.rand(3, *IMAGE)
    with torch.no_grad():
        found = backbone.encoder(IMAGE)(images)
        last, second, fifth = body.maps(torch.rand(1, 3, 64, 64), (2, 5))
    assert found.shape == (3, *backbone.shape(IMAGE))
    widths = [each.shape[1] for each in (last, second, fifth)]
    assert sum(widths) == found.shape[2]
    for part, length in zip(found.split(widths, 2), (1.0, 0.5, 0.5), strict=True):
        torch.testing.assert_close(part.flatten(1).norm(dim=1), torch.full((3,), length))
    with torch.no_grad():
        plain = replace(backbone, after=()).encoder(IMAGE)(images)
    torch.testing.assert_close(found[..., : widths[0]] * plain.flatten(1).norm(dim=1)[:, None, None], plain)


def test_the_networks_own_walk_makes_the_same_map():
    body, images = image_body(), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        theirs = body.network.extract_features((images * 255 - 127) / 128)
        assert torch.equal(body.maps(images)[0], theirs)


@pytest.mark.parametrize("backbone", [IMAGES, BESIDE], ids=["last", "beside"])
def test_an_examples_features_are_the_same_bits_whoever_is_beside_it(backbone, monkeypatch):
    stand_in(monkeypatch, "efficientnet-lite0")
    images = torch.rand(7, *IMAGE)  # no whole number of batches
    several = extract(backbone, images, keep=False, workers=1)[:]
    without = extract(backbone, images[[0, 1, 3, 4, 5, 6]], keep=False, workers=1)[:]
    assert backbone.at_once == 4
    assert torch.equal(several[[0, 1, 3, 4, 5, 6]], without)


def test_a_network_that_lets_neighbours_in_is_given_one_example_at_a_time():
    def alone(rows):
        return rows.flatten(1).sum(1).view(-1, 1, 1)

    def together(rows):
        return alone(rows) + 1e-3 * rows.mean()

    def by_place(rows):
        return alone(rows) + 1e-3 * torch.arange(len(rows)).view(-1, 1, 1)

    assert _alone_in_company(alone, IMAGE, 4)
    assert not _alone_in_company(together, IMAGE, 4)
    assert not _alone_in_company(by_place, IMAGE, 4)


def test_texts_have_one_place(monkeypatch):
    stand_in(monkeypatch, "minilm-l6")
    texts = torch.randint(1, 50, (3, LENGTH)).float()
    found = extract(Backbone(network="minilm-l6"), texts, keep=False, workers=1)
    assert found.shape == (3, 1, 16)
    torch.testing.assert_close(found[:, 0].float(), text_features(monkeypatch, texts), atol=1e-2, rtol=1e-2)


def text_features(monkeypatch, texts):
    torch.manual_seed(0)
    with torch.no_grad():
        return public_network("minilm-l6").load()(texts)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"network": "resnet"}, "no public network 'resnet'"),
        ({"side": 100}, "take a multiple of 32"),
        ({"grid": 0}, "Backbone's grid is 0"),
        ({"after": [17]}, "names block 17, and efficientnet-lite0 has 16"),
        ({"after": [3, 3]}, "names a block twice"),
        ({"after": [5], "weight": 0.0}, "Backbone's weight is 0.0"),
        ({"network": "minilm-l6", "after": [1]}, "names block 1, and minilm-l6 has 0"),
        ({"precision": "int8"}, "must be 'float32' or 'bfloat16'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Backbone(**settings)


def test_examples_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match=r"takes texts of shape \(length,\), and an example's shape is \(3, 8, 8\)"):
        Backbone(network="minilm-l6").shape(IMAGE)
    with pytest.raises(ConfigError, match="takes images of shape"):
        Backbone().shape((64,))


def test_a_run_on_a_public_network_says_what_it_assumes(monkeypatch, tmp_path):
    stand_in(monkeypatch, "efficientnet-lite0")
    settings = config.from_dict(
        {
            "data": {"name": "digits", "settings": {"limit": 40}},
            "features": {
                "extractors": {"net": {"kind": "backbone", "side": 32}},
                "cache": False,
                "workers": 1,
                "share": 0.1,
            },
            "model": {"name": "linear"},
            "budget": {"epsilon": 3.0, "steps": 2, "batch_size": 10},
        }
    )
    outcome = train(settings, tmp_path / "run")
    assumed = public_network("efficientnet-lite0").assumption
    proven = discreet.verify(tmp_path / "run").runs[0].guarantee
    for guarantee in (outcome.guarantee, proven, resume(tmp_path / "run").guarantee):
        assert {c.status for c in guarantee.conditions if c.text == assumed} == {"assumed"}
    assert assumed in (tmp_path / "run" / "guarantee.txt").read_text()


@pytest.mark.parametrize(("name", "shape"), [("efficientnet-lite0", IMAGE), ("minilm-l6", (LENGTH,))])
def test_one_real_batch(name, shape):
    pytest.importorskip(public_network(name).module, reason="needs discreet[backbones]")
    pytest.importorskip("transformers" if name == "minilm-l6" else "efficientnet_lite_pytorch")
    backbone = Backbone(network=name, side=32, precision="bfloat16")
    examples = torch.rand(2, *shape) if len(shape) == 3 else torch.randint(1000, 2000, (2, *shape)).float()
    found = extract(backbone, examples, keep=False, workers=1)
    assert found.shape == (2, *backbone.shape(shape))
    assert not torch.equal(found[0], found[1])
