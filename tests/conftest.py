"""What all tests share: how hard hypothesis tries.

`HYPOTHESIS_PROFILE=night` tries harder and differently every time; the default is the same run
everywhere. Brokers and clients to test with are in the conftest of the folder that needs them.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile(
    "night", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
