import pytest
import ranks
import shard_work

from discreet import PrivacyError


@pytest.mark.parametrize("count", [1, 3])
def test_a_sharded_model_releases_what_a_whole_one_does(tmp_path, count):
    for found in ranks.run(count, shard_work.sharded_or_not, tmp_path):
        for name, (expected, released) in found.items():
            error = (released - expected).norm() / expected.norm()
            assert error < 1e-6, f"{name}: {error:.1e}"


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


def test_shards_that_change_between_two_chunks_are_refused(tmp_path):
    for error in ranks.run(2, shard_work.stepping_too_early, tmp_path):
        assert isinstance(error, PrivacyError)
        assert "changed between two chunks" in str(error)
