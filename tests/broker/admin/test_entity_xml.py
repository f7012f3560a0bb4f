"""Descriptions as XML: the order of the service, every setting, and what is refused."""

import re
from datetime import timedelta

import pytest

from pairbus.broker.entities.descriptions import Status
from pairbus.broker.entities.durations import INFINITE
from tests.broker.admin.site import HOST, SERVICE_BUS

INFINITY = "P10675199DT2H48M5.4775807S"

# As the service writes them.
ORDER = {
    "queue": """LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession
        DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
        DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations SizeInBytes
        MessageCount IsAnonymousAccessible AuthorizationRules Status CreatedAt UpdatedAt AccessedAt
        SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus
        EnableExpress ForwardTo UserMetadata ForwardDeadLetteredMessagesTo
        MaxMessageSizeInKilobytes""",
    "topic": """DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection
        DuplicateDetectionHistoryTimeWindow EnableBatchedOperations SizeInBytes
        FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules Status CreatedAt
        UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount SqlFilterCount
        CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus
        EnableSubscriptionPartitioning EnableExpress UserMetadata MaxMessageSizeInKilobytes""",
    "subscription": """LockDuration RequiresSession DefaultMessageTimeToLive
        DeadLetteringOnMessageExpiration DeadLetteringOnFilterEvaluationExceptions MessageCount
        MaxDeliveryCount EnableBatchedOperations Status ForwardTo CreatedAt UpdatedAt AccessedAt
        CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle EntityAvailabilityStatus
        UserMetadata""",
}
DESCRIPTIONS = {
    "queue": ("q", "QueueDescription"),
    "topic": ("t", "TopicDescription"),
    "subscription": ("u/subscriptions/s", "SubscriptionDescription"),
}
FORWARDS = (
    f"<ForwardTo>sb://{HOST}/target</ForwardTo>"
    f"<ForwardDeadLetteredMessagesTo>sb://{HOST}/target</ForwardDeadLetteredMessagesTo>"
)


class Maker:
    """Puts descriptions of one kind of entity."""

    def __init__(self, site, kind):
        self.kind = kind
        self.site = site
        self.path, self.element = DESCRIPTIONS[kind]
        site.queue("target")
        site.topic("u")

    def put(self, inner="", **more):
        return self.site.put(self.path, f"<{self.element}>{inner}</{self.element}>", **more)

    @property
    def description(self):
        path = self.path.replace("subscriptions", "Subscriptions")
        return self.site.namespace.find(path).description


@pytest.fixture(params=DESCRIPTIONS)
def maker(request, site):
    return Maker(site, request.param)


def names(answer):
    return [child.tag.removeprefix(f"{{{SERVICE_BUS}}}") for child in answer.description]


def test_elements_come_in_the_order_of_the_service(maker):
    forwards = "" if maker.kind == "topic" else FORWARDS

    answer = maker.put(f"{forwards}<UserMetadata>m</UserMetadata>")

    assert answer.status == 201
    assert names(answer) == ORDER[maker.kind].split()
    assert names(maker.site.get(maker.path)) == names(answer)


def test_what_is_not_set_is_not_shown(maker):
    shown = names(maker.put())

    assert not {"ForwardTo", "ForwardDeadLetteredMessagesTo", "UserMetadata"} & set(shown)


DEFAULTS = {
    "LockDuration": "PT1M",
    "MaxSizeInMegabytes": "1024",
    "RequiresDuplicateDetection": "false",
    "RequiresSession": "false",
    "DefaultMessageTimeToLive": INFINITY,
    "DeadLetteringOnMessageExpiration": "false",
    "DeadLetteringOnFilterEvaluationExceptions": "true",
    "DuplicateDetectionHistoryTimeWindow": "PT10M",
    "MaxDeliveryCount": "10",
    "EnableBatchedOperations": "true",
    "SizeInBytes": "0",
    "MessageCount": "0",
    "IsAnonymousAccessible": "false",
    "Status": "Active",
    "AccessedAt": "0001-01-01T00:00:00Z",
    "CreatedAt": "2027-01-15T08:00:00.000Z",
    "UpdatedAt": "2027-01-15T08:00:00.000Z",
    "SupportOrdering": "true",
    "SubscriptionCount": "0",
    "AutoDeleteOnIdle": INFINITY,
    "EnablePartitioning": "false",
    "EntityAvailabilityStatus": "Available",
    "EnableExpress": "false",
    "MaxMessageSizeInKilobytes": "256",
}


def test_defaults_are_those_of_the_service(maker):
    answer = maker.put()

    shown = {name: answer.text(name) for name in names(answer)}
    assert {name: DEFAULTS[name] for name in shown if name in DEFAULTS} == {
        name: text for name, text in shown.items() if name in DEFAULTS
    }


# element -> (as it is sent, as it is shown, what the description says)
SETTINGS = {
    "LockDuration": ("PT30S", "PT30S", timedelta(seconds=30)),
    "MaxSizeInMegabytes": ("5120", "5120", 5120),
    "RequiresDuplicateDetection": ("true", "true", True),
    "RequiresSession": ("True", "true", True),
    "DefaultMessageTimeToLive": ("P1D", "P1D", timedelta(days=1)),
    "DeadLetteringOnMessageExpiration": ("1", "true", True),
    "DeadLetteringOnFilterEvaluationExceptions": ("false", "false", False),
    "DuplicateDetectionHistoryTimeWindow": ("PT30M", "PT30M", timedelta(minutes=30)),
    "MaxDeliveryCount": ("3", "3", 3),
    "EnableBatchedOperations": ("false", "false", False),
    "Status": ("ReceiveDisabled", "ReceiveDisabled", Status.RECEIVE_DISABLED),
    "AutoDeleteOnIdle": ("PT10M1S", "PT10M1S", timedelta(minutes=10, seconds=1)),
    "EnablePartitioning": ("true", "true", True),
    "EnableExpress": ("true", "true", True),
    "SupportOrdering": ("false", "false", False),
    "ForwardTo": (f"sb://{HOST}/target", f"sb://{HOST}/target", "target"),
    "ForwardDeadLetteredMessagesTo": ("target", f"sb://{HOST}/target", "target"),
    "UserMetadata": (" a&lt;b ", " a<b ", " a<b "),
}


def field_of(name):
    """As the description calls it: LockDuration is lock_duration."""
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


FIXED = {"RequiresDuplicateDetection", "RequiresSession", "EnablePartitioning"}
CASES = [
    (kind, name)
    for kind in ORDER
    for name in SETTINGS
    if name in ORDER[kind].split() and (kind, name) != ("queue", "SupportOrdering")
]


@pytest.mark.req("B-02")
@pytest.mark.parametrize(("kind", "name"), CASES, ids=[" ".join(case) for case in CASES])
def test_a_setting_is_made_shown_and_taken_back(site, kind, name):
    maker = Maker(site, kind)
    sent, shown, value = SETTINGS[name]
    attribute = field_of(name)

    created = maker.put(f"<{name}>{sent}</{name}>")
    stored = getattr(maker.description, attribute)
    plain = maker.put(update=True)
    left = getattr(maker.description, attribute)

    assert (created.status, created.text(name), stored) == (201, shown, value)
    assert plain.status == 200
    if name in FIXED:  # it cannot be changed, so an update need not repeat it
        assert left == value
    else:
        assert left != value


@pytest.mark.req("B-02")
@pytest.mark.parametrize(("kind", "name"), CASES, ids=[" ".join(case) for case in CASES])
def test_a_setting_is_updated_or_cannot_be(site, kind, name):
    maker = Maker(site, kind)
    sent, shown, value = SETTINGS[name]
    maker.put()
    site.now += 60

    answer = maker.put(f"<{name}>{sent}</{name}>", update=True)

    if name in FIXED:
        assert answer.status == 400
        assert f"another {name}, which cannot be changed" in answer.detail
        assert not getattr(maker.description, field_of(name))
    else:
        assert (answer.status, answer.text(name)) == (200, shown)
        assert getattr(maker.description, field_of(name)) == value
        assert answer.text("CreatedAt") == "2027-01-15T08:00:00.000Z"
        assert answer.text("UpdatedAt") == "2027-01-15T08:01:00.000Z"


def test_infinity_comes_back_rounded_from_python_and_is_still_infinity(site):
    site.queue("q", "<AutoDeleteOnIdle>P10675199DT2H48M5.477539S</AutoDeleteOnIdle>")

    assert site.namespace.find("q").description.auto_delete_on_idle == INFINITE
    assert site.get("q").text("AutoDeleteOnIdle") == INFINITY


def test_what_was_shown_can_be_sent_back_as_it_is(maker):
    shown = maker.put("<UserMetadata>m</UserMetadata>").body.decode()
    before = maker.description

    start, end = shown.index(f"<{maker.element}"), shown.index("</content>")
    answer = maker.site.put(maker.path, shown[start:end], update=True)

    assert answer.status == 200
    assert maker.description == before


# The ranges of settings: tests/broker/entities/test_descriptions.py.
REFUSED = {
    "no duration": (
        "<LockDuration>1 minute</LockDuration>",
        "LockDuration is '1 minute', but must",
    ),
    "a lock above five minutes": (
        "<LockDuration>PT5M1S</LockDuration>",
        "LockDuration is PT5M1S, but must be between PT1S and PT5M",
    ),
    "no number": ("<MaxDeliveryCount>ten</MaxDeliveryCount>", "'ten', but must be a whole number"),
    "an endless number": (
        f"<MaxDeliveryCount>{'9' * 5000}</MaxDeliveryCount>",
        "but must be a whole number",
    ),
    "no boolean": ("<RequiresSession>yes</RequiresSession>", "'yes', but must be true or false"),
    "an unknown status": ("<Status>Creating</Status>", "Active, Disabled, SendDisabled"),
    "a target that is not there": ("<ForwardTo>nobody</ForwardTo>", "no such queue or topic"),
    "a target of another namespace": (
        "<ForwardTo>sb://other.example/target</ForwardTo>",
        "of this namespace",
    ),
    "a target without a name": (f"<ForwardTo>sb://{HOST}/</ForwardTo>", "of this namespace"),
    "a queue for everybody": (
        "<IsAnonymousAccessible>true</IsAnonymousAccessible>",
        "IsAnonymousAccessible must be false",
    ),
    "a property that nobody knows": ("<Colour>red</Colour>", "'Colour' is not a property"),
    "a property of topics": (
        "<FilteringMessagesBeforePublishing>false</FilteringMessagesBeforePublishing>",
        "is not a property of a QueueDescription",
    ),
    "a property twice": ("<Status>Active</Status>" * 2, "Status occurs twice"),
}


@pytest.mark.req("B-02")
@pytest.mark.parametrize(("inner", "reason"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("update", [False, True], ids=["to create", "to update"])
def test_refused_is(site, inner, reason, update):
    maker = Maker(site, "queue")
    if update:
        maker.put()

    answer = maker.put(inner, update=update)

    assert answer.status == 400
    assert reason in answer.detail
    if update:
        assert maker.description == type(maker.description)(name="q")
    else:
        assert site.get("q").status == 404


class TestTiers:
    SIZE = "<MaxMessageSizeInKilobytes>{}</MaxMessageSizeInKilobytes>"

    @pytest.fixture
    def premium(self, make_site):
        return make_site(sku="Premium")

    def test_standard_has_one_size_of_messages(self, site):
        maker = Maker(site, "queue")

        refused = maker.put(self.SIZE.format(1024))
        made = maker.put(self.SIZE.format(256))
        changed = maker.put(self.SIZE.format(255), update=True)

        assert (refused.status, made.status, changed.status) == (400, 201, 400)
        assert "Premium namespaces only, and this one is Standard" in refused.detail

    def test_premium_starts_at_a_megabyte(self, premium):
        maker = Maker(premium, "topic")

        assert maker.put().text("MaxMessageSizeInKilobytes") == "1024"
        changed = maker.put(self.SIZE.format(102_400), update=True)
        kept = maker.put(update=True)
        assert changed.text("MaxMessageSizeInKilobytes") == "102400"
        assert kept.text("MaxMessageSizeInKilobytes") == "102400"

    @pytest.mark.parametrize("size", [1023, 102_401])
    def test_premium_has_a_range(self, premium, size):
        answer = Maker(premium, "queue").put(self.SIZE.format(size))

        assert answer.status == 400
        assert f"is {size}, but must be between 1024 and 102400" in answer.detail

    @pytest.mark.parametrize("name", ["EnablePartitioning", "EnableExpress"])
    def test_premium_has_no(self, premium, name):
        answer = Maker(premium, "queue").put(f"<{name}>true</{name}>")

        assert answer.status == 400
        assert f"{name} is not possible in Premium namespaces" in answer.detail

    def test_subscriptions_have_no_size_of_messages(self, premium):
        answer = Maker(premium, "subscription").put()

        assert answer.status == 201
        assert answer.text("MaxMessageSizeInKilobytes") is None

    def test_an_old_version_of_the_api_knows_no_size_of_messages(self, site):
        maker = Maker(site, "queue")

        refused = maker.put(self.SIZE.format(256), version="2017-04")
        made = maker.put(version="2017-04")

        assert refused.status == 400
        assert "api-version 2021-05" in refused.detail
        assert made.text("MaxMessageSizeInKilobytes") is None
