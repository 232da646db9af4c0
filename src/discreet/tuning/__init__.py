"""A search over settings: drawn ones whose cost is inside the guarantee, or a grid on public data.

draws.py    how many trials there are, with which settings: drawn once, in secret
trials.py   several runs, on every core; stopped and taken up again
scores.py   how good a trial is, with noise that is counted, or by held-out rows
tune.py     the best of the trials, released alone
sweep.py    a grid on data that is public, where nothing is charged
page.py     all trials on a page, for whoever holds the data
"""
