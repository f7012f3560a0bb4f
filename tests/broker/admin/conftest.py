"""One site per test, closed at the end."""

import pytest

from tests.broker.admin.site import Site


@pytest.fixture
def make_site():
    sites = []

    def make(**options):
        sites.append(Site(**options))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(make_site):
    return make_site()
