"""A journal survives the kill of its process, up to the last line."""

from pairbus.verify.journal import Entry, Fact, Journal, read_journals


def test_what_is_written_is_read(tmp_path):
    for name in ("b", "a"):
        journal = Journal(tmp_path / f"{name}.journal", clock=lambda: 12.5)
        journal.write(Fact.ATTEMPT, f"{name}-1")
        journal.write(Fact.RECEIVED, f"{name}-2", "a session with spaces", 7)
        journal.close()

    assert list(read_journals(tmp_path)) == [
        Entry(Fact.ATTEMPT, "a-1", 12.5),
        Entry(Fact.RECEIVED, "a-2", 12.5, "a session with spaces", 7),
        Entry(Fact.ATTEMPT, "b-1", 12.5),
        Entry(Fact.RECEIVED, "b-2", 12.5, "a session with spaces", 7),
    ]


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    path = tmp_path / "a.journal"
    Journal(path, clock=lambda: 1.0).write(Fact.ATTEMPT, "a-1")
    with path.open("a") as file:
        file.write("acknowledged 1.0")

    assert [entry.fact for entry in read_journals(tmp_path)] == [Fact.ATTEMPT]
