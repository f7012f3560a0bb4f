"""What to do next, and nothing else: which namespace gets a message, what is pinged, and when.

Everything here is pure. `now` (monotonic seconds) and a function that picks at random are handed
in; decisions, tasks and events come out. No clock, I/O, lock, logging or SDK: an hour of outage is
a test of microseconds. The shells own all of that, and hold one lock around the calls to a
`Router`.

    health.py     one entity: healthy, suspect, failed over, or on its way back
    fail_back.py  ordered fail-back: when the messages in the backlog are home
    backlog.py    the rotation of the backlog queues
    entity.py     what the router keeps of one entity, when it is pinged, and which is due next
    plans.py      what a router decides
    router.py     all entities of one client, and all decisions about them
    status.py     a snapshot of it
    envelope.py   what a message carries while it waits in a backlog queue
"""
