import pytest
import ranks
import shard_work
import torch
from scipy.stats import chi2

from discreet import PrivacyError


@pytest.fixture(scope="module")
def unsharded(tmp_path_factory):
    """What one process releases without sharding."""
    (found,) = ranks.run(1, shard_work.trained, tmp_path_factory.mktemp("unsharded"), False)
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_sharded_model_releases_what_a_whole_one_does(tmp_path, unsharded, count):
    names = unsharded if count == 2 else shard_work.FEW
    for found in ranks.run(count, shard_work.trained, tmp_path, True, tuple(names)):
        for name in names:
            error = (found[name] - unsharded[name]).norm() / unsharded[name].norm().clamp(min=1e-30)
            assert error < 1e-6, f"{name}: {error:.1e}"
            assert (name == "none is finite") == bool((unsharded[name] == 0).all())


def test_a_rank_never_has_the_whole_model_where_norms_are_bounded(tmp_path):
    for gathered, sums in ranks.run(3, shard_work.memory, tmp_path, False):
        assert gathered < 0.2
        assert 0.25 < min(sums) <= max(sums) < 0.6  # a third, and buffers
    for gathered, sums in ranks.run(3, shard_work.memory, tmp_path, True):
        assert gathered >= 1
        assert max(sums) == 0  # nothing is scattered


@pytest.mark.parametrize("seed", [5, None])
def test_each_rank_draws_the_noise_of_its_own_shard(tmp_path, seed):
    shards = ranks.run(3, shard_work.noise, tmp_path, seed)
    for shard in shards:
        least, most = chi2.ppf([1e-8, 1 - 1e-8], shard.numel())
        assert least < shard.square().sum() < most
    rows = torch.cat([shard[:, :4500] for shard in shards])  # of three steps each
    found = torch.corrcoef(rows) - torch.eye(len(rows))
    assert found.abs().max() < 6 / 4500**0.5
    drawn = torch.cat([shard.flatten() for shard in shards])
    assert drawn.unique().numel() > 0.99 * drawn.numel()  # rounded, few are equal by chance


def test_what_cannot_be_made_exact_is_refused_by_name(tmp_path):
    for found, guarantee, _ in ranks.run(2, shard_work.refused, tmp_path, tmp_path):
        mesh, precision, offload, part, bounded, checkpoint, plain = found
        assert "a mesh of shape (1, 2)" in mesh
        assert "MixedPrecisionPolicy" in precision
        assert "offloaded to the CPU" in offload
        assert "only parts are sharded" in part
        assert "BoundedNetwork keeps weights within bounds" in bounded
        assert "torch.distributed.checkpoint" in checkpoint
        assert "would train without privacy" in plain
        assert "2 processes trained together" in guarantee


def test_a_rank_that_fails_in_one_of_several_chunks_stops_the_others(tmp_path):
    for rank, error in enumerate(ranks.run(2, shard_work.failing, tmp_path)):
        assert isinstance(error, PrivacyError)
        assert ("rank 1 stopped" in str(error)) == (rank == 0)


@pytest.mark.parametrize(
    ("work", "why"), [(shard_work.mixing, "mixes examples"), (shard_work.failing_within_a_pass, "by zero")]
)
def test_a_rank_that_fails_over_a_backward_pass_stops_the_others(tmp_path, work, why):
    errors = ranks.run(2, work, tmp_path)
    assert all(why in str(error) for error in errors)
    assert "rank 1 stopped" in str(errors[0])


def test_a_parameter_that_is_unfrozen_after_attach_is_refused(tmp_path):
    for error in ranks.run(2, shard_work.unfreezing, tmp_path):
        assert "'blocks.0.up.weight' was unfrozen" in str(error)


def test_shards_that_change_between_two_chunks_are_refused(tmp_path):
    for error in ranks.run(2, shard_work.stepping_too_early, tmp_path):
        assert isinstance(error, PrivacyError)
        assert "changed between two chunks" in str(error)
