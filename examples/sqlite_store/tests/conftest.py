import pytest

pytest.register_assert_rewrite("fetchproxy.storage.contract")
