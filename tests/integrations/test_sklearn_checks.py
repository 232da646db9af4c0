"""scikit-learn's own checks of an estimator."""

from discreet.sklearn import PrivateClassifier, PrivateRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

# all rows in each step and hardly any noise, so that no check of accuracy depends on luck
SETTINGS = {"epsilon": 1e4, "bounds": (-4, 4), "epochs": 60, "batch_size": 10_000, "repeat": "alone"}
TWO_FITS = "it compares two fits, and no two fits draw the same noise"
NOT_PASSED = dict.fromkeys(
    (
        "check_classifier_data_not_an_array",
        "check_fit_idempotent",
        "check_regressor_data_not_an_array",
        "check_regressors_int",
        "check_supervised_y_2d",
    ),
    TWO_FITS,
)


@parametrize_with_checks(
    [
        PrivateClassifier(classes="public", **SETTINGS),
        PrivateRegressor(target_bounds=(-4, 4), learning_rate=0.5, **SETTINGS),
    ],
    expected_failed_checks=lambda estimator: NOT_PASSED,
)
def test_scikit_learn_accepts(estimator, check):
    check(estimator)
