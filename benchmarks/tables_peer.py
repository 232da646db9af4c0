"""diffprivlib's side of tables.py, in an environment of its own: it needs an older scikit-learn than discreet.

    python tables_peer.py FILE.npz EPSILON [NORM]

FILE has rows from -1 to 1 (x, test_x) and their answers y: classes, or numbers from -1 to 1. Prints what each model
says of test_x, as JSON; with NORM, the longest that a row can be, the scores of two classes' logistic regression alone.
"""

import json
import math
import sys
import warnings

import diffprivlib.models as dp
import numpy as np


def main() -> None:
    """Fit and predict."""
    file, epsilon = np.load(sys.argv[1]), float(sys.argv[2])
    x, y, test_x = file["x"].astype(float), file["y"], file["test_x"].astype(float)
    if y.dtype.kind == "f":
        models = {"diffprivlib": dp.LinearRegression(epsilon=epsilon, bounds_X=(-1, 1), bounds_y=(-1, 1))}
    else:
        models = {
            "diffprivlib": dp.LogisticRegression(epsilon=epsilon, data_norm=math.sqrt(x.shape[1]), max_iter=2000),
            "diffprivlib NB": dp.GaussianNB(epsilon=epsilon, bounds=(-1, 1)),
        }
    warnings.simplefilter("ignore")
    if sys.argv[3:]:
        model = dp.LogisticRegression(epsilon=epsilon, data_norm=float(sys.argv[3]), max_iter=2000)
        print(json.dumps(model.fit(x, y).decision_function(test_x).tolist()))
        return
    print(json.dumps({name: model.fit(x, y).predict(test_x).tolist() for name, model in models.items()}))


if __name__ == "__main__":
    main()
