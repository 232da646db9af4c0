import pytest
from small_runs import table_at


@pytest.fixture
def table(tmp_path):
    return table_at(tmp_path)
