"""Service Bus in Spark: the `servicebus` data source, and what travels to Spark's tasks.

    settings.py   where a namespace is and how to get in
    options.py    pure: the data source's options, checked
    rows.py       pure: messages as rows, and rows as messages

Nothing of Spark or of Arrow is imported before it is asked for.
"""
