import numpy as np
import pytest
import torch

from discreet import ConfigError, data
from discreet.data.inputs import described, inputs

SCHEMA = {
    "age": {"low": 0, "high": 100},
    "job": {"categories": ["clerk", "farmer"]},
    "rich": {"classes": ["no", "yes"]},
    "ignore": ["id"],
}
ROWS = ["id,age,job,rich", "1,25,clerk,no", "2,,farmer,yes", "3,200,pilot,no", "4,50,clerk,yes"]


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("\n".join(ROWS) + "\n")
    return path


def test_a_tables_rows_are_encoded_as_training_encoded_them(people):
    made = data.load(str(people), schema=SCHEMA, label="rich", test_fraction=0.0)
    again = inputs(people, described(made)).rows
    order = torch.randperm(4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again[order], made.train[0])
    assert made.class_names == ("no", "yes")


def test_labels_and_other_columns_need_not_be_there_and_their_cells_may_be_anything(people, tmp_path):
    how = described(data.load(str(people), schema=SCHEMA, label="rich", test_fraction=0.0))
    wanted = inputs(people, how).rows
    bare = tmp_path / "bare.csv"
    bare.write_text("job,more,age\n" + "".join(f"{r.split(',')[2]},x,{r.split(',')[1]}\n" for r in ROWS[1:]))
    assert torch.equal(inputs(bare, how).rows, wanted)
    columns = {"age": [25, None, 200.0, 50], "job": ["clerk", "farmer", "pilot", " clerk"], "rich": [None] * 4}
    assert torch.equal(inputs(columns, how).rows, wanted)
    bare.write_text("age,job\n")
    assert inputs(bare, how).rows.shape == (0, 3)


def test_what_a_table_lacks_is_named_in_one_message(people, tmp_path):
    how = described(data.load(str(people), schema=SCHEMA, label="rich", test_fraction=0.0))
    (tmp_path / "a.csv").write_text("income\n3\n")
    with pytest.raises(ConfigError, match="no column 'age', 'job', which the model was trained on"):
        inputs(tmp_path / "a.csv", how)
    with pytest.raises(ConfigError, match="different lengths"):
        inputs({"age": [1, 2], "job": ["clerk"]}, how)
    with pytest.raises(ConfigError, match="row 1 has no number in column 'age'"):
        inputs({"age": ["old"], "job": ["clerk"]}, how)
    for wrong, words in ((tmp_path, "is no table"), ([[1.0]], "rows of a table are a list")):
        with pytest.raises(ConfigError, match=words):
            inputs(wrong, how)


def test_arrays_come_from_files_and_from_values(tmp_path):
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("f4")
    np.savez(tmp_path / "a.npz", x=x)
    np.save(tmp_path / "a.npy", x.astype("f8"))
    how = {"kind": "array", "shape": [5]}
    for source in (tmp_path / "a.npz", str(tmp_path / "a.npy"), x, torch.from_numpy(x), x.tolist()):
        assert np.array_equal(inputs(source, how).rows.numpy(), x)


def test_a_folder_of_images_is_read_in_the_order_of_its_names(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'discreet[data]'")
    (tmp_path / "b").mkdir()
    for name, value in (("b/1.png", 255), ("a.png", 51)):
        image.new("RGB" if value == 51 else "L", (4, 4), (value,) * 3 if value == 51 else value).save(tmp_path / name)
    found = inputs(tmp_path, {"kind": "array", "shape": [1, 4, 4]})
    assert found.names == ("a.png", "b/1.png")
    assert found.rows.amax((1, 2, 3)).tolist() == pytest.approx([0.2, 1.0])
    assert inputs(tmp_path / "a.png", {"kind": "array", "shape": [3, 4, 4]}).rows.shape == (1, 3, 4, 4)
    with pytest.raises(ConfigError, match=r"takes rows of shape \(5,\)"):
        inputs(tmp_path, {"kind": "array", "shape": [5]})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((2, 5), np.uint8), "scaled by the constants"),
        (np.zeros((2, 4), "f4"), r"takes rows of shape \(5,\)"),
        (np.full((1, 5), np.nan, "f4"), "not finite"),
        ("nowhere.npz", "cannot be read"),
        ("rows.txt", "nothing that this model takes"),
        ([["a"]], "are no numbers"),
    ],
)
def test_what_does_not_fit_is_refused(values, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        inputs(values, {"kind": "array", "shape": [5]})


def test_a_file_without_x_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", z=np.zeros((2, 5)))
    with pytest.raises(ConfigError, match="has no array x; it has z"):
        inputs(tmp_path / "a.npz", {"kind": "array", "shape": [5]})
