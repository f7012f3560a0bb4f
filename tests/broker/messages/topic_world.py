"""Topics for `World`: descriptions in few words, and what the file holds of their messages.

The topic is `t` where nothing else is said; a subscription is known here by its own short name.
"""

from pairbus.amqp.codec.values import decode
from pairbus.broker.entities.descriptions import (
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from pairbus.broker.messages.lifecycle import MailboxKind
from pairbus.broker.rules import SqlAction, SqlFilter, TrueFilter

_DATA = b"\x00\x53\x75"


def topic(name="t", **settings):
    return TopicDescription(name=name, **settings)


def sub(name, *rules, of="t", **settings):
    """Without rules, it has the one that takes everything."""
    if rules:
        settings["rules"] = rules
    return SubscriptionDescription(name=subscription_path(of, name), **settings)


def rule(filter=None, action=None, *, name="rule"):
    """A filter or an action in SQL, or a filter of another kind."""
    if isinstance(filter, str):
        filter = SqlFilter(filter)
    return RuleDescription(
        name=name,
        filter=filter or TrueFilter(),
        action=None if action is None else SqlAction(action),
    )


def at(name, *, of="t"):
    """The subscription's path."""
    return subscription_path(of, name)


def body_of(message):
    return bytes(decode(message.bare.partition(_DATA)[2])[0])


def stored(world, of, kind=MailboxKind.MAIN):
    """All messages of a mailbox, locked or not, as the file has them."""
    mailbox_id = world.queue(of).mailboxes[kind].counters.mailbox_id
    return world.namespace.store.read_from(mailbox_id, first=0, count=10_000)


def bodies(world, of, kind=MailboxKind.MAIN):
    return [body_of(message) for message in stored(world, of, kind)]


def shared_bodies(world):
    """The references that each shared body claims to have."""
    return dict(world.look("SELECT id, refs FROM body ORDER BY id"))


def check_bodies(world):
    """What each shared body claims is what refers to it, and nothing refers to what is gone."""
    found = world.look(
        "SELECT bare, count(*) FROM message WHERE typeof(bare) = 'integer' GROUP BY bare"
    )
    assert shared_bodies(world) == dict(found)


def check_file(world):
    """Counters, in memory and in the file, and shared bodies are what the rows say."""
    check_bodies(world)
    world.check_counters()


def create(world, description):
    entity = world.namespace.create(description)
    world.flush()
    return entity


def delete(world, path):
    world.namespace.delete(world.queue(path))
    world.flush()
