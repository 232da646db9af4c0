"""docs/config.md, from the descriptions of the fields themselves.

python benchmarks/config_page.py > docs/config.md
"""

import inspect
import json

import msgspec

from discreet.runs.config import Config, documented


def main():
    print("# A run's file\n")
    print(
        "`discreet train RUN.toml --out runs/a`. Every field with its default; unknown ones are refused. Flags replace"
    )
    print(
        "what the file says, and `--set section.field=value` any other. Printed by `python benchmarks/config_page.py`."
    )
    sections = {}
    for field in documented():
        sections.setdefault(field.section, []).append((field.name, field.description, field.default))
    kinds = {f.name: f.type for f in msgspec.structs.fields(Config)}
    for section, fields in sections.items():
        kind = next((t for t in getattr(kinds[section], "__args__", ()) if isinstance(t, type)), kinds[section])
        print(f"\n## [{section}]\n\n{inspect.cleandoc(kind.__doc__)}\n")
        print("| field | default | meaning |\n| --- | --- | --- |")
        for name, description, default in fields:
            value = "needed" if default is msgspec.NODEFAULT else "" if default is None else f"`{json.dumps(default)}`"
            print(f"| `{name}` | {value} | {description} |")


if __name__ == "__main__":
    main()
