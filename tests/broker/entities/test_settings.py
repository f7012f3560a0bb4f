"""The one table of settings names every field, in the service's words."""

from dataclasses import fields

import pytest

from pairbus.broker.entities.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    settings_of,
)
from pairbus.broker.entities.settings import in_service_names


@pytest.mark.parametrize("kind", [QueueDescription, TopicDescription, SubscriptionDescription])
def test_every_setting_has_a_name_of_the_service(kind):
    elsewhere = {"name", "rules", "authorization_rules"}

    described = {one.field for one in settings_of(kind).values()}

    assert described == {field.name for field in fields(kind)} - kind.lacks - elsewhere


def test_the_names_are_the_fields_in_the_services_spelling():
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription):
        for name, one in settings_of(kind).items():
            assert name.lower() == one.field.replace("_", "")


def test_error_texts_get_the_services_names():
    text = "queue 'a_b': lock_duration and no_setting"

    assert in_service_names(text) == "queue 'a_b': LockDuration and no_setting"
