"""The syphon brings diverted messages home: from the backlog queues to where they belong.

    job.py            the driver's loop of rounds; options.py has its options
    discovery.py      which backlog queues exist
    long_poll.py      the idle wait between rounds: a poll of 15 minutes for each queue
    backlog_peek.py   where the messages are to go in queues whose messages wait
    link_probes.py    whether a primary that was down is back
    rights.py         whether the credentials have the rights that the syphon needs
    schedule.py       pure: which queues the next round takes, and when
    queue_state.py    pure: when one backlog queue is looked at again
    runner.py         runs the tasks of a round, on Spark or in this process
    drain.py          one task: receive, restore, send, settle (delivery.py, backlog_queue.py);
                      task_clients.py has its connections
    restore.py        pure: makes a backlog message the message that the application sent
    policy.py         pure: what a failed send means for its destination and its messages
    window.py         pure: how long a task works and waits
    receipts.py       pure: the outcomes of the messages, in rows that can be added up
    ledger.py         these rows as Parquet files (parquet_files.py); report.py says what they mean
    metrics.py        rounds and billed operations (usage.py) for Prometheus
    background.py     the syphon in the background of a paired client

Importing this package imports neither Spark nor the Azure SDK.
"""
