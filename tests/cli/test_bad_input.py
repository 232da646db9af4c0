"""What people may get wrong with a table, a model in use and its page: one line, a documented code."""

import shutil

import numpy as np
import pytest
from small_ledgers import counted
from small_people import people_config

from discreet.cli.app import main
from discreet.runs.run import train

BAD, REFUSED = 2, 3
SAID = '[statement]\nname = "A"\ndescription = "B"\npurpose = "C"\nregion = "D"\npublished = "soon"\n'
FILES = {
    "empty.csv": "",
    "head.csv": "age,job,wage\n",
    "ragged.csv": "age,job\n3\n",
    "twice.csv": "age,age\n3,4\n",
    "words.csv": "age,job\nold,clerk\n",
    "lacking.csv": "age\n3\n",
    "a.txt": "age,job\n3,clerk\n",
    "a.npz": "x",
    "a.parquet": "x",
    "good.csv": "age,job\n30,clerk\n",
    "said.toml": SAID + 'curators = ["E"]\nauthors = ["F"]\n',
    "odd.toml": "[statement]\ncolour = 'red'\n",
    "kind.toml": "[statement]\nauthors = 3\n",
    "none.toml": "",
    "broken.toml": "[statement\n",
    "torn.jsonl": "hello\n",
    "bad.toml": "[data]\nnaem = 'digits'\n",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    train(people_config(folder), folder / "run")
    for name in ("swapped", "forged", "bare"):
        shutil.copytree(folder / "run", folder / name)
    (folder / "swapped" / "model.safetensors").write_bytes(b"x")
    ledger = (folder / "forged" / "ledger.jsonl").read_text()
    (folder / "forged" / "ledger.jsonl").write_text(ledger.replace("Clip", "Clop", 1))
    (folder / "bare" / "model.json").unlink()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    np.savez(folder / "flat.npz", y=np.zeros(3))
    counted(folder / "one.jsonl", 5)
    counted(folder / "two.jsonl", 5)
    return folder


CASES = [
    ("schema none.csv --label wage", BAD, "cannot be read"),
    ("schema empty.csv --label wage", BAD, "is empty"),
    ("schema people.csv --label wages", BAD, "no column 'wages'"),
    ("schema a.txt --label wage", BAD, "is no table"),
    ("schema a.parquet --label wage", BAD, "cannot be read"),
    ("schema run --label wage", BAD, "is no table"),
    ("schema twice.csv --label age", BAD, "age"),
    ("schema people.csv --label rich --out no/such/place", BAD, "cannot be written"),
    ("schema people.csv", BAD, "--label"),
    ("predict nowhere good.csv", BAD, "is no run's folder"),
    ("predict . good.csv", BAD, "is no run's folder"),
    ("predict run none.csv", BAD, "cannot be read"),
    ("predict run empty.csv", BAD, "is empty"),
    ("predict run ragged.csv", BAD, "row 1 has 1 cells"),
    ("predict run twice.csv", BAD, "several columns"),
    ("predict run words.csv", BAD, "row 1 has no number in column 'age'"),
    ("predict run lacking.csv", BAD, "no column 'job'"),
    ("predict run a.txt", BAD, "is no table"),
    ("predict run a.npz", BAD, "is no table"),
    ("predict run a.parquet", BAD, "cannot be read"),
    ("predict run good.csv --out out.txt", BAD, "written as .csv"),
    ("predict run good.csv --out no/out.csv", BAD, "cannot be written"),
    ("predict run good.csv --stages no_such_module", BAD, "no_such_module"),
    ("predict swapped good.csv", REFUSED, "model.safetensors"),
    ("predict forged good.csv", REFUSED, "damaged"),
    ("predict bare good.csv", BAD, "model.json"),
    ("predict run", BAD, "FILE"),
    ("export nowhere --to onnx", BAD, "is no run's folder"),
    ("export run --to tensorflow", BAD, "torchscript, onnx, sklearn"),
    ("export run --to onnx --out a.pt", BAD, "ends in .onnx"),
    ("export run --to torchscript --out no/a.pt", BAD, "cannot be written"),
    ("export swapped --to torchscript", REFUSED, "model.safetensors"),
    ("export forged --to torchscript", REFUSED, "damaged"),
    ("report nowhere", BAD, "no such file"),
    ("report torn.jsonl", REFUSED, "damaged at line 1"),
    ("report one.jsonl two.jsonl", BAD, "out="),
    ("report run run --out all", BAD, "named twice"),
    ("report one.jsonl --out good.csv", BAD, "cannot be written"),
    ("report run --statement none.toml", BAD, "no [statement] table"),
    ("report run --statement odd.toml", BAD, "colour"),
    ("report run --statement kind.toml", BAD, "authors"),
    ("report run --statement broken.toml", BAD, "is not TOML"),
    ("report run --statement nowhere.toml", BAD, "cannot be read"),
    ("report run --registry entry.yaml", BAD, "nobody has declared: name, curators"),
    ("report run --statement said.toml --registry entry.yaml", BAD, "published is 'soon'"),
    ("report one.jsonl two.jsonl --registry entry.yaml", BAD, "is of one run"),
    ("report swapped --statement said.toml --registry entry.yaml", REFUSED, "no guarantee that could be stated"),
    ("report forged --statement said.toml --registry entry.yaml", REFUSED, "no guarantee that could be stated"),
    ("train --recipe nosuch", BAD, "nosuch"),
    ("train bad.toml --epsilon 1", BAD, "naem"),
    ("train none.csv --label wage --epsilon 1", BAD, "none.csv"),
    ("train people.csv --epsilon 1", BAD, "label"),
    ("train people.csv --label rich --epsilon 1 --log-format xml", BAD, "xml"),
    ("train people.csv --schema schema.toml --label rich --epsilon -1", BAD, "epsilon"),
]


def test_there_are_enough_of_them():
    commands = [arguments.split()[0] for arguments, _, _ in CASES]
    assert len(CASES) >= 40
    assert set(commands) == {"schema", "predict", "export", "report", "train"}


@pytest.mark.parametrize(("arguments", "code", "words"), CASES, ids=[case[0] for case in CASES])
def test_it_is_one_line_with_a_documented_code(arguments, code, words, made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    monkeypatch.setattr("sys.argv", ["discreet", *arguments.split()])
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    with pytest.raises(SystemExit) as ended:
        main()
    out, errors = capsys.readouterr()
    assert ended.value.code == code, errors
    assert words in errors
    assert "Traceback" not in errors
    lines = [line for line in errors.splitlines() if line.strip()]
    if not lines[0].lower().startswith("usage"):  # what the parser says of flags has its own form
        assert len([line for line in lines if line.startswith("discreet: ")]) == 1
    assert out == ""
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before, "something was written"
