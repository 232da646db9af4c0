import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet import Clip, Gaussian, Mechanism, PerLayerClip
from discreet.stages.sensitivity import Block, Blocks, Layout, effective_multiplier

blocks = st.lists(
    st.builds(Block, members=st.just(("w",)), norm=st.floats(1e-3, 1e3), size=st.integers(1, 10**6)),
    min_size=1,
    max_size=9,
).map(lambda found: Blocks(tuple(found)))


@given(blocks, st.floats(1e-2, 1e2), st.sampled_from(["joint", "each", "power"]))
def test_every_allocation_has_the_stated_effective_multiplier(contract, multiplier, allocation):
    scales = Mechanism(Clip(1.0), Gaussian(multiplier), allocation).scales(contract)
    assert effective_multiplier(contract, scales) == pytest.approx(multiplier)


@given(blocks)
def test_power_has_the_least_total_noise(contract):
    def power(allocation):
        scales = Mechanism(Clip(1.0), Gaussian(1.0), allocation).scales(contract)
        return sum(b.size * s**2 for b, s in zip(contract.blocks, scales, strict=True))

    assert power("power") <= min(power("joint"), power("each")) * (1 + 1e-9)


def test_ten_tensors_with_the_same_deviation_each_divide_the_multiplier_by_root_ten():
    """THEORY 4.1: sigma .7225 on ten tensors clipped separately is an effective .2285."""
    layout = Layout(tuple(f"t{i}" for i in range(10)), ((3,),) * 10)
    mechanism = Mechanism(PerLayerClip(1.0), Gaussian(std=0.7225))
    assert mechanism.multiplier(layout) == pytest.approx(0.7225 / math.sqrt(10))


def test_no_noise_is_multiplier_zero():
    assert Mechanism(Clip(2.0), Gaussian(std=0.0)).multiplier(None) == 0
