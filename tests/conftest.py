"""Settings of property tests: no time limits, which would measure the machine; the same examples at every CI run.

And descriptors enough for tests with hundreds of connections, of which both ends are ours.
"""

import os
import resource

from hypothesis import HealthCheck, settings

settings.register_profile(
    "initless",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("initless")

_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(_soft, min(_hard, 8192)), _hard))
