"""docs/commands.md, from the commands themselves.

python benchmarks/commands_page.py > docs/commands.md
"""

import inspect

import typer

from discreet.cli.app import app
from discreet.cli.exits import CODES


def text():
    group = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Every command, its arguments and flags, as `discreet COMMAND --help` says them. Printed by "
        "`python benchmarks/commands_page.py`.",
        "| command | what it does |\n| --- | --- |\n"
        + "\n".join(f"| [`{name}`](#discreet-{name}) | {first(command)} |" for name, command in group.commands.items()),
    ]
    parts += [section(name, command) for name, command in group.commands.items()]
    codes = "\n".join(f"| `{code}` | {meaning} |" for code, meaning in CODES.items())
    parts.append(f"## Exit codes\n\n| code | what it means |\n| --- | --- |\n{codes}")
    return "\n\n".join(parts)


def section(name, command):
    parameters = [p for p in command.params if not p.hidden]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    called = " ".join(["discreet", name, *map(place, arguments), "[FLAGS]"])
    lines = [f"## discreet {name}", f"```\n{called}\n```", described(command)]
    if parameters:
        rows = "\n".join(f"| {names(p)} | {cell(p.help)}{needed(p)} |" for p in parameters)
        lines.append(f"| argument or flag | meaning |\n| --- | --- |\n{rows}")
    return "\n\n".join(lines)


def place(argument):
    name = argument.name.upper() + (" ..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def described(command):
    return inspect.cleandoc(command.help or "").replace("\b\n", "")


def first(command):
    return described(command).split("\n\n")[0].replace("\n", " ")


def names(parameter):
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    takes = "" if parameter.is_flag else f" {kind(parameter)}"
    return ", ".join(f"`{name}{takes}`" for name in [*parameter.opts, *parameter.secondary_opts])


def kind(parameter):
    choices = getattr(parameter.type, "choices", None)
    return "/".join(map(str, choices)) if choices else parameter.type.name.upper()


def needed(parameter):
    if parameter.required:
        return " Needed."
    default = parameter.default
    if default is None or callable(default) or parameter.is_flag or default in ((), [], ""):
        return ""
    return f" Default: `{default}`."


def cell(words):
    return " ".join((words or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    print(text())
