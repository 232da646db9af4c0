"""A small table of people in a file, with its schema, and a run on it."""

from small_runs import config

SCHEMA = """\
[age]
low = 0
high = 100

[job]
categories = ["clerk", "farmer"]

[rich]
classes = ["no", "yes"]
"""


def people_at(folder, rows=80):
    """The table's path; its schema is beside it."""
    (folder / "schema.toml").write_text(SCHEMA)
    lines = [f"{i % 100},{('clerk', 'farmer')[i % 2]},{('no', 'yes')[i % 100 > 50]}" for i in range(rows)]
    path = folder / "people.csv"
    path.write_text("\n".join(["age,job,rich", *lines]) + "\n")
    return path


def people_config(folder, **sections):
    """A run on them."""
    path = people_at(folder)
    data = {"name": str(path), "schema": str(folder / "schema.toml"), "label": "rich"}
    return config(path, data=data, **sections)
