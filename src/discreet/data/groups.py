"""Groups of a table's test rows, by the words of one column: for figures of each group, and no input of a model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discreet._check import shown
from discreet.data.rules import Buckets, Private, Rule, WithMissing, Words, bucket, is_missing, word_in
from discreet.data.schema import Problems

OTHERS = "others"  # rows whose cell is missing, or none of the words


@dataclass(frozen=True)
class Grouping:
    """By which column rows are grouped, if by any, and its words where a schema does not say them."""

    column: str | None = None
    words: Sequence[str] | None = None

    def check(self, path: str, rules: Mapping[str, Rule], label: str, problems: Problems) -> None:
        """Note what is wrong, before a row is read."""
        if self.column is None:
            if self.words is not None:
                problems.tell("groups are words of a column; name it with group.")
            return
        name = shown(self.column)
        if self.column == label:
            problems.tell(f"{path}: group is the label column {name}, whose classes have figures anyway.")
        elif self.words is not None:
            named = [word_in(word) for word in self.words]
            if not named or len(set(named)) < len(named) or OTHERS in named:
                problems.tell(
                    f"groups of {name} is {shown(list(self.words))}; give words that differ, none of them {OTHERS!r}."
                )
        elif not isinstance(self._rule(rules), (Words, Buckets)) and self._rule(rules) != Private("categories"):
            problems.tell(
                f"{path}: the schema says no categories of {name}, by which rows are to be grouped; say its words, as "
                "--set evaluation.groups=['a','b'], or categories."
            )

    def of(self, cells: Sequence[Any], rules: Mapping[str, Rule]) -> tuple[tuple[str, ...], Tensor]:
        """The groups' names, and the number of each test row's.

        A bucket of words that was found with noise is called by the commonest of the test rows' words in it.
        """
        rule = self._rule(rules)
        if self.words is not None:
            rule = Words(tuple(word_in(word) for word in self.words))
        words = ["" if is_missing(cell) else word_in(cell) for cell in cells]
        if isinstance(rule, Words):
            names, numbered = rule.words, rule.numbers(words)
        elif isinstance(rule, Buckets):
            place = {found: number for number, found in enumerate(rule.buckets)}
            numbered = [place.get(bucket(word), -1) if word else -1 for word in words]
            by_bucket = [
                Counter(w for w, own in zip(words, numbered, strict=True) if own == k) for k in range(len(place))
            ]
            names = tuple(
                found.most_common(1)[0][0] if found else f"bucket {rule.buckets[number]}"
                for number, found in enumerate(by_bucket)
            )
        else:
            names, numbered = (), [-1] * len(words)
        last = len(names)
        return (*names, OTHERS), torch.tensor([last if number < 0 else number for number in numbered])

    def _rule(self, rules: Mapping[str, Rule]) -> Rule | None:
        rule = rules.get(self.column or "")
        return rule.rule if isinstance(rule, WithMissing) else rule
