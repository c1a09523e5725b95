"""Settings of property tests: no time limits, which would measure the machine; the same examples at every CI run."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "initless",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("initless")
