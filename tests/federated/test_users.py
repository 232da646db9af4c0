import pytest
import torch

from discreet import ConfigError
from discreet.federated import Users

X = torch.arange(100.0)[:, None]
Y = torch.arange(100) % 5


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet"])
def test_every_row_goes_to_one_user(partition):
    users = Users.dealt(X, Y, 12, partition)
    assert len(users) == 12
    rows = torch.cat([x[:, 0] for x, _ in users])
    assert torch.equal(rows.sort().values, torch.arange(100.0))
    assert all(torch.equal(y, x[:, 0].long() % 5) for x, y in users)


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet"])
def test_a_partition_follows_from_its_seed(partition):
    def rows(seed):
        return [x[:, 0].tolist() for x, _ in Users.dealt(X, Y, 12, partition, seed=seed)]

    assert rows(1) == rows(1) != rows(2)


def test_iid_users_are_as_equal_as_can_be():
    assert sorted({len(x) for x, _ in Users.dealt(X, Y, 12)}) == [8, 9]


def test_a_user_of_shards_has_few_labels():
    assert max(len(y.unique()) for _, y in Users.dealt(X, Y, 10, "shards")) == 2
    assert max(len(y.unique()) for _, y in Users.dealt(X, Y, 10)) > 2


def test_a_small_alpha_is_uneven():
    def spread(alpha):
        return torch.tensor([len(x) for x, _ in Users.dealt(X, Y, 10, "dirichlet", alpha=alpha)]).float().std()

    assert spread(0.1) > 2 * spread(100.0)


def test_users_by_name():
    users = Users.of(X, Y, ["b" if i % 3 else "a" for i in range(100)])
    assert [len(x) for x, _ in users] == [34, 66]
    assert users[0][0][:3, 0].tolist() == [0.0, 3.0, 6.0]
    numbered = Users.of(X, Y, torch.arange(100) % 4)
    assert [len(x) for x, _ in numbered] == [25] * 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Users.dealt(X, Y, 101), "101 users"),
        (lambda: Users.dealt(X, Y, 0), "users is 0"),
        (lambda: Users.dealt(X, Y, 60, "shards"), "120 shards"),
        (lambda: Users.dealt(X, Y.float(), 5, "shards"), "'iid'"),
        (lambda: Users.dealt(X, Y, 5, "fair"), "iid, shards, dirichlet"),
        (lambda: Users.dealt(X, Y, 5, "dirichlet", alpha=0.0), "alpha"),
        (lambda: Users.of(X, Y, [1, 2]), "each row has one"),
        (lambda: Users.of(X, Y, [None, *range(99)]), "no owner"),
        (lambda: Users.of(X, Y, [float("nan"), *range(99)]), "no owner"),
        (lambda: Users(X, Y, ()), "no users"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
