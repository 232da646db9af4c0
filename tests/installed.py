"""discreet from its wheel, in an environment of its own, as somebody has it who never saw the checkout."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent


class Installed:
    """Commands of an installed wheel, carried out in a folder, and counted."""

    def __init__(self, environment, folder):
        self.bin, self.folder, self.commands = environment / "bin", folder, []
        self.settings = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DISCREET"))}

    def start(self, *arguments):
        self.commands.append(arguments)
        own = {"cwd": self.folder, "env": self.settings, "text": True}
        return subprocess.Popen([self.bin / "discreet", *arguments], stdout=-1, stderr=-1, **own)

    def run(self, *arguments, code=0):
        """What a command prints; it must end with this code."""
        done = self.start(*arguments)
        out, errors = done.communicate(timeout=300)
        assert done.returncode == code, errors
        return out if code == 0 else errors

    def python(self, text):
        done = subprocess.run(
            [self.bin / "python", "-c", text], cwd=self.folder, env=self.settings, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def environment(folder):
    """An environment with the wheel; what it needs is where the tests have it, the checkout is not."""
    wheels, made = folder / "wheels", folder / "environment"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (wheel,) = wheels.iterdir()
    subprocess.run([*pip, "--python", made / "bin" / "python", "install", "--no-deps", "--no-index", wheel], check=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)})
    (Path(packages) / "others.pth").write_text(sysconfig.get_path("purelib"))
    return made
