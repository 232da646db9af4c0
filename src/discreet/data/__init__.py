"""The data sets that a run can name: bundled and well-known ones, files of one's own, functions of one's own.

Nothing is fitted to the data on the way in. Pixels are divided by a constant, a table's columns are scaled by ranges
that somebody states, and where nobody can state them `private_ranges` asks for them with noise, as a counted query.

dataset.py   examples to train on and to test on, checked; how they are parted
named.py     which data set a name names
download.py  where well-known data is, and from where it is downloaded
mnist.py     digits, MNIST, Fashion-MNIST
cifar.py     CIFAR-10
images.py    images by class
custom.py    .npz files, and functions of your own
archives.py  the arrays of an .npz file
columns.py   the columns of .csv and .parquet files
schema.py    what is known of columns without looking
rules.py     the numbers that a column's cells become
describe.py  a schema to begin with, from a header and the kinds of cells
private_schema.py  what nobody has declared of columns, asked for with noise
tables.py    tables, by a schema
groups.py    groups of test rows, by the words of a column
people.py    tables of people that other packages bring along, by schemas in schemas/
ranges.py    ranges that nobody can state
made_up.py   data made up by a stated law
inputs.py    rows without labels, for a model that has been trained
files.py     what every reader of files needs
"""

from discreet.data.dataset import Data
from discreet.data.named import NAMES, load
from discreet.data.ranges import private_ranges, ranges_cost
from discreet.data.tables import table

__all__ = ["NAMES", "Data", "load", "private_ranges", "ranges_cost", "table"]
