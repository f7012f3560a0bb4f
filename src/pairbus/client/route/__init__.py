"""What to do next, and nothing else: which namespace gets a message, who is pinged, and when.

Everything here is pure. `now` (monotonic seconds) and the dice are handed in; decisions, chores and
events come out. No clock, I/O, lock, logging or SDK: an hour of outage is a test of microseconds.
The shells in `sender/` own all of that, and hold one lock around the calls to a `Router`.

    health.py     one entity: healthy, suspect, or failed over
    backlog.py    the rotation of the backlog queues
    agenda.py     who is due next
    router.py     all entities of one client, and all decisions about them
    status.py     a snapshot of it
    envelope.py   what a message carries while it waits in a backlog queue
    partners.py   when one client of a pair ends, and the other does not
"""
