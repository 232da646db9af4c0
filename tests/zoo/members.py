"""All members of the zoo."""

from importlib import import_module

from zoo.cases import REGISTERED, Member

THEMES = [
    "closed", "padding", "objects", "state", "loops", "backward", "normalisation", "losses", "between",
    "chance", "lent", "hidden", "late",
    "sound_networks", "sound_sequences", "sound_state", "sound_random", "sound_losses", "sound_chance",
    "sound_hidden", "sound_late",
]  # fmt: skip

for theme in THEMES:
    import_module(f"zoo.{theme}")

MEMBERS: list[Member] = list(REGISTERED)
MIXING = [m for m in MEMBERS if not m.sound]
SOUND = [m for m in MEMBERS if m.sound]
