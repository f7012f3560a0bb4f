"""The administration API as a whole, without sockets: routes, answers, and errors."""

import sqlite3

import pytest

from pairbus.broker.admin.atom import ATOM, SERVICE_BUS
from pairbus.broker.messages.lifecycle import MailboxKind
from tests.broker.admin.site import wrapped

QUEUE = "<QueueDescription/>"
TOPIC = "<TopicDescription/>"
SUBSCRIPTION = "<SubscriptionDescription/>"
RULE = "<RuleDescription/>"
SQL = '<Filter i:type="SqlFilter"><SqlExpression>{}</SqlExpression></Filter>'


@pytest.fixture
def shop(site):
    """A queue, and a topic with a subscription."""
    site.queue("orders")
    site.topic("News/All")
    site.subscription("News/All", "Desk")
    return site


# -- queues and topics


@pytest.mark.req("B-02")
def test_a_queue_is_made_found_changed_and_removed(site):
    assert site.get("Orders").status == 404

    made = site.put("Orders", QUEUE)
    found = site.get("orders")
    changed = site.put("ORDERS", QUEUE, update=True)
    removed = site.delete("oRders")

    assert (made.status, found.status, changed.status) == (201, 200, 200)
    assert (removed.status, removed.body) == (200, b"")
    assert site.get("Orders").status == 404
    for answer in (made, found, changed):
        assert answer.headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
        assert answer.xml.findtext(f"{{{ATOM}}}title") == "Orders"  # as it was first written


@pytest.mark.req("B-02")
@pytest.mark.parametrize("path", ["News%2FAll", "news/all", "NEWS/ALL"])
def test_a_slash_in_a_name_may_be_encoded_or_not(shop, path):
    assert shop.get(path).text("SubscriptionCount") == "1"
    assert shop.get(f"{path}/subscriptions/desk").status == 200


def test_an_update_cannot_turn_a_queue_into_a_topic(shop):
    answer = shop.put("orders", TOPIC, update=True)

    assert answer.status == 400
    assert "queue 'orders' exists, but the body is a TopicDescription" in answer.detail


BAD_NAMES = {
    "a blank": "a%20b",
    "a bad start": ".a",
    "a bad letter": "caf%C3%A9",
    "long": "a" * 261,
}


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_name_is_refused_with(site, name):
    answer = site.put(name, QUEUE)

    assert answer.status == 400
    assert "is not valid" in answer.detail


def test_a_queue_cannot_pass_for_a_subscription(shop):
    answer = shop.put("News%2FAll%2FSubscriptions%2FOther", QUEUE)

    assert answer.status == 400
    assert shop.get("News%2FAll%2FSubscriptions%2FDesk").status == 404


# -- subscriptions


@pytest.mark.req("B-08")
def test_a_subscription_starts_with_a_rule_that_matches_everything(shop):
    answer = shop.get("News%2FAll/subscriptions/Desk/rules")

    assert answer.titles == ["$Default"]
    assert b'i:type="TrueFilter"' in answer.body


@pytest.mark.req("B-08")
def test_a_subscription_may_bring_its_first_rule(shop):
    first = (
        f"<DefaultRuleDescription>{SQL.format('a = 1')}<Name>mine</Name></DefaultRuleDescription>"
    )
    shop.subscription("News/All", "own", first)

    answer = shop.get("News%2FAll/subscriptions/own/rules/mine")

    assert b"<SqlExpression>a = 1</SqlExpression>" in answer.body
    assert shop.get("News%2FAll/subscriptions/own/rules").titles == ["mine"]


def test_an_update_of_a_subscription_keeps_its_rules(shop):
    path = "News/All/subscriptions/Desk"
    shop.put(f"{path}/rules/r", RULE)

    answer = shop.put(path, SUBSCRIPTION, update=True)

    assert answer.status == 200
    assert shop.get(f"{path}/rules").titles == ["$Default", "r"]


def test_a_subscription_goes_alone(shop):
    assert shop.delete("News/All/Subscriptions/desk").status == 200

    assert shop.get("News/All").text("SubscriptionCount") == "0"


def test_subscriptions_are_named_in_their_address_as_node_reads_them(shop):
    entry = shop.get("news/all/subscriptions/desk").xml

    assert "/News/All/Subscriptions/Desk?" in entry.findtext(f"{{{ATOM}}}id")
    assert entry.findtext(f"{{{ATOM}}}title") == "Desk"


@pytest.mark.parametrize("name", ["a%2Fb", "a" * 51, "a%20b"])
def test_a_subscription_cannot_be_called(shop, name):
    assert shop.put(f"News%2FAll/subscriptions/{name}", SUBSCRIPTION).status == 400


# -- rules


@pytest.mark.req("B-08")
def test_a_subscription_may_lose_all_its_rules(shop):
    assert shop.delete("News%2FAll/subscriptions/Desk/rules/$default").status == 200

    assert shop.get("News%2FAll/subscriptions/Desk/rules").titles == []


def test_filters_are_counted(shop):
    correlation = '<RuleDescription><Filter i:type="CorrelationFilter"/></RuleDescription>'
    shop.put("News/All/subscriptions/Desk/rules/c", correlation)

    topic = shop.get("News/All")

    assert (topic.text("SqlFilterCount"), topic.text("CorrelationFilterCount")) == ("1", "1")


# -- what is not there

MISSING = {
    "a queue": ("nobody", QUEUE),
    "a subscription": ("News/All/subscriptions/nobody", SUBSCRIPTION),
    "a rule": ("News/All/subscriptions/Desk/rules/nobody", RULE),
    "a topic's subscription": ("nobody/subscriptions/s", SUBSCRIPTION),
    "a queue's subscription": ("orders/subscriptions/s", SUBSCRIPTION),
    "a rule of a missing subscription": ("News/All/subscriptions/nobody/rules/r", RULE),
}


@pytest.mark.req("B-02")
@pytest.mark.parametrize(("path", "description"), MISSING.values(), ids=MISSING)
def test_what_is_not_there_is_not_found(shop, path, description):
    answers = [
        shop.get(path),
        shop.put(path, description, update=True),
        shop.delete(path),
    ]

    assert [answer.status for answer in answers] == [404] * 3
    assert all("There is no " in answer.detail for answer in answers)


@pytest.mark.parametrize(
    ("path", "description"),
    [
        ("nobody/subscriptions/s", SUBSCRIPTION),
        ("orders/subscriptions/s", SUBSCRIPTION),
        ("News/All/subscriptions/nobody/rules/r", RULE),
    ],
)
def test_nothing_is_made_in_what_is_not_there(shop, path, description):
    assert shop.put(path, description).status == 404


@pytest.mark.parametrize("path", ["nobody/subscriptions", "News/All/subscriptions/x/rules"])
def test_lists_of_what_is_not_there_are_not_found(shop, path):
    assert shop.get(path).status == 404


# -- lists


@pytest.mark.req("B-02")
def test_lists_are_sorted_and_complete(site):
    for name in ("b", "C", "a/x", "A0"):
        site.queue(name)
        site.topic(f"t-{name}")
        site.subscription("t-b", name.replace("/", "-"))

    assert site.get("$Resources/queues").titles == ["a/x", "A0", "b", "C"]
    assert site.get("$Resources/topics").titles == ["t-a/x", "t-A0", "t-b", "t-C"]
    assert site.get("t-b/subscriptions").titles == ["a-x", "A0", "b", "C"]


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("$skip=1&$top=1", ["b"]),
        ("%24skip=2", ["c"]),
        ("$skip=3", []),
        ("$top=3", ["a", "b", "c"]),
        ("$top=999999999", ["a", "b", "c"]),
    ],
)
def test_a_page_holds_what_was_asked_for(site, query, titles):
    for name in "abc":
        site.queue(name)

    answer = site.ask("GET", f"/$Resources/queues?{query}")

    assert answer.titles == titles
    assert len(answer.xml.findall(f"{{{ATOM}}}link")) == (2 if titles == ["b"] else 1)


@pytest.mark.parametrize(
    "query", ["$skip=-1", "$top=0", "$top=ten", "$skip=1e3", "$top=" + "9" * 40]
)
def test_a_page_is_refused_with(site, query):
    answer = site.ask("GET", f"/$Resources/queues?{query}")

    assert answer.status == 400
    assert "$" in answer.detail


# -- counts and times


def test_counts_are_those_of_the_mailboxes(site):
    site.queue("q")
    queue = site.namespace.find("q")
    main, dead = (
        queue.mailboxes[MailboxKind.MAIN].counters,
        queue.mailboxes[MailboxKind.DEAD_LETTER].counters,
    )
    main.active, main.deferred, main.scheduled, main.bytes = 3, 2, 5, 700
    dead.active, dead.bytes = 7, 77
    queue.mailboxes[MailboxKind.TRANSFER_DEAD_LETTER].counters.active = 11
    site.now += 60
    queue.accessed_ms = site.namespace.now_ms()

    answer = site.get("q")

    details = answer.description.find(f"{{{SERVICE_BUS}}}CountDetails")
    assert {child.tag.rpartition("}")[2]: int(child.text) for child in details} == {
        "ActiveMessageCount": 5,  # with those that are deferred
        "DeadLetterMessageCount": 7,
        "ScheduledMessageCount": 5,
        "TransferMessageCount": 0,
        "TransferDeadLetterMessageCount": 11,
    }
    assert answer.text("MessageCount") == "28"
    assert answer.text("SizeInBytes") == "777"
    assert answer.text("AccessedAt") == "2027-01-15T08:01:00.000Z"
    main.active = main.deferred = main.scheduled = 0


def test_the_namespace_tells_about_itself(site, make_site):
    standard = site.get("$namespaceinfo")
    premium = make_site(sku="Premium", name="big").get("$NamespaceInfo")

    assert [child.tag.rpartition("}")[2] for child in standard.description] == [
        "CreatedTime",
        "MessagingSKU",
        "ModifiedTime",
        "Name",
        "NamespaceType",
    ]
    assert (standard.text("MessagingSKU"), standard.text("Name")) == ("Standard", "local")
    assert (premium.text("MessagingSKU"), premium.text("MessagingUnits")) == ("Premium", "1")


# -- requests that make no sense


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/orders", "GET, PUT, DELETE"),
        ("PATCH", "/orders", "GET, PUT, DELETE"),
        ("PUT", "/$namespaceinfo", "GET"),
        ("DELETE", "/$Resources/queues", "GET"),
        ("PUT", "/News/All/subscriptions", "GET"),
        ("DELETE", "/News/All/subscriptions/Desk/rules", "GET"),
    ],
)
def test_a_method_that_is_not_possible(shop, method, path, allowed):
    answer = shop.ask(method, path, wrapped(QUEUE))

    assert answer.status == 405
    assert answer.headers["allow"] == allowed
    assert "is not possible at" in answer.detail


WRONG_BODIES = {
    "a rule for a queue": ("x", RULE, "must be one of QueueDescription, TopicDescription"),
    "a subscription for a queue": ("x", SUBSCRIPTION, "TOPIC/subscriptions/NAME"),
    "a queue for a subscription": ("News/All/subscriptions/x", QUEUE, "body is a QueueDescription"),
    "a queue for a rule": ("News/All/subscriptions/Desk/rules/x", QUEUE, "is a QueueDescription"),
}


@pytest.mark.parametrize(("path", "body", "reason"), WRONG_BODIES.values(), ids=WRONG_BODIES)
def test_a_body_must_fit_its_path(shop, path, body, reason):
    answer = shop.put(path, body)

    assert answer.status == 400
    assert reason in answer.detail


def test_a_body_is_bounded(site):
    answer = site.ask("PUT", "/q", chunks=[b"x" * 100_000] * 3)

    assert answer.status == 413
    assert answer.headers["connection"] == "close"


def test_a_client_that_disconnects_within_its_body_is_no_server_error(site):
    assert site.ask("PUT", "/q", chunks=[b"<entry>", None]).status == 400


def test_a_body_in_pieces_is_put_together(site):
    body = wrapped(QUEUE)

    assert site.ask("PUT", "/q", chunks=[body[:50], body[50:], b""]).status == 201


@pytest.mark.parametrize("version", ["2017-04", "2021-05", "2024-05"])
def test_versions_of_the_api(site, version):
    answer = site.ask("GET", f"/$Resources/queues?api-version={version}")

    assert answer.status == 200
    assert f"api-version={version}".encode() in answer.body


@pytest.mark.parametrize("version", ["1", "latest", "2021-05-preview"])
def test_an_unknown_version_of_the_api_is_refused(site, version):
    answer = site.ask("GET", f"/$Resources/queues?api-version={version}")

    assert answer.status == 400
    assert f"The api-version {version!r} is not known" in answer.detail


def test_an_invalid_host_is_not_repeated_in_the_answer(site):
    assert site.get("$namespaceinfo", headers={"host": 'a"><b>'}).status == 400


# -- the disk


@pytest.mark.parametrize("change", ["create", "update", "delete"])
def test_a_change_that_the_disk_refuses_is_not_acknowledged(site, change, monkeypatch):
    site.queue("q")

    def refuse():
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(site.namespace.store, "commit", refuse)
        if change == "create":
            answer = site.put("new", QUEUE)
        elif change == "update":
            answer = site.put("q", QUEUE, update=True)
        else:
            answer = site.delete("q")

    assert answer.status == 500
    assert "could not be stored" in answer.detail
