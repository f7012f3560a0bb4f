"""What to do next, and nothing else: which namespace gets a message, what is pinged, and when.

Everything here is pure. `now` (monotonic seconds) and a function that picks at random are handed
in; decisions, tasks and events come out. No clock, I/O, lock, logging or SDK: an hour of outage is
a test of microseconds. The shells own all of that, and hold one lock around the calls to a
`Router`.

    health.py       one entity: healthy, suspect, failed over, or on its way back
    entity.py       what the router keeps of one entity, when it is pinged, and which is due next
    entities.py     all of them: what follows when one fails over or back
    router.py       where a message goes, and what the background has to do
    plans.py        what a router decides
    status.py       a snapshot of it
    backlog.py      the rotation of the backlog queues
    envelope.py     what a message carries while it waits in a backlog queue
    fail_back.py    ordered failback: an entity goes back when its own messages are home
    own_backlog.py  what is known of them, and when the queue is peeked at
    drains.py       when the messages of an outbox are sent
"""
