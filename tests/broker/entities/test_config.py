import json
from datetime import timedelta

import pytest

from pairbus.broker.entities.config import load_config
from pairbus.broker.entities.descriptions import QueueDescription, Status
from pairbus.broker.entities.durations import INFINITE
from pairbus.errors import ConfigError

# The shape of the file that the official emulator ships, without its topic.
EMULATOR = """\
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }
        ],
        "Topics": []
      }
    ],
    "Logging": {
      "Type": "File"
    }
  }
}
"""


def queue_file(properties, name='"orders"'):
    """A file with one queue, whose property lines start at line 3."""
    lines = ",\n".join(properties)
    return (
        '{"UserConfig": {"Namespaces": [{"Name": "local", "Queues": [\n'
        f'{{"Name": {name}, "Properties": {{\n{lines}\n}}}}]}}]}}}}'
    )


def reason(load, text):
    with pytest.raises(ConfigError) as caught:
        load(text)
    _, line, why = str(caught.value).split(":", 2)
    return int(line), why.strip()


def test_the_emulators_own_file_is_read(load):
    [namespace] = load(EMULATOR)

    assert namespace.name == "sbemulatorns"
    assert namespace.queues == (
        QueueDescription(
            name="queue.1",
            default_message_time_to_live=timedelta(hours=1),
            duplicate_detection_history_time_window=timedelta(seconds=20),
            lock_duration=timedelta(minutes=1),
            max_delivery_count=3,
        ),
    )


def test_settings_missing_in_the_file_have_the_services_defaults(load):
    [namespace] = load('{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}]}]}}')

    assert namespace.queues == (QueueDescription(name="q"),)
    assert namespace.port == 0
    assert namespace.data is None


def test_a_null_counts_as_left_out(load):
    [namespace] = load(queue_file(['"LockDuration": null', '"ForwardTo": null']))

    assert namespace.queues == (QueueDescription(name="orders"),)


def test_settings_that_only_the_service_has_are_read_too(load):
    [namespace] = load(
        queue_file(
            [
                '"AutoDeleteOnIdle": "PT5M"',
                '"EnableBatchedOperations": false',
                '"EnableExpress": true',
                '"EnablePartitioning": true',
                '"MaxMessageSizeInKilobytes": 1024',
                '"MaxSizeInMegabytes": 5120',
                '"Status": "SendDisabled"',
                '"UserMetadata": "of the web shop"',
                '"DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S"',
            ]
        )
    )

    assert namespace.queues == (
        QueueDescription(
            name="orders",
            auto_delete_on_idle=timedelta(minutes=5),
            enable_batched_operations=False,
            enable_express=True,
            enable_partitioning=True,
            max_message_size_in_kilobytes=1024,
            max_size_in_megabytes=5120,
            status=Status.SEND_DISABLED,
            user_metadata="of the web shop",
            default_message_time_to_live=INFINITE,
        ),
    )


def test_a_file_may_hold_several_namespaces(load):
    namespaces = load(
        '{"UserConfig": {"Namespaces": [{"Name": "primary"}, {"Name": "secondary"}]}}'
    )

    assert [namespace.name for namespace in namespaces] == ["primary", "secondary"]


def test_queues_forward_to_queues_of_the_same_file_in_any_order(load):
    [namespace] = load(
        """{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [
            {"Name": "in", "Properties": {"ForwardTo": "Out"}},
            {"Name": "out", "Properties": {"ForwardDeadLetteredMessagesTo": "dead"}},
            {"Name": "dead"}]}]}}"""
    )

    assert [queue.forward_to for queue in namespace.queues] == ["Out", None, None]
    assert namespace.queues[1].forward_dead_lettered_messages_to == "dead"


def test_a_byte_order_mark_and_windows_line_ends_are_read_over(tmp_path):
    path = tmp_path / "Config.json"
    path.write_bytes(b"\xef\xbb\xbf" + EMULATOR.replace("\n", "\r\n").encode())

    [namespace] = load_config(path)

    assert namespace.name == "sbemulatorns"


MISTAKES = {
    "a duration out of its range": (
        ['"MaxDeliveryCount": 3', '"LockDuration": "PT10M"'],
        4,
        "queue 'orders': LockDuration is PT10M, but must be between PT1S and PT5M",
    ),
    "a number out of its range": (
        ['"MaxDeliveryCount": 0'],
        3,
        "queue 'orders': MaxDeliveryCount is 0, but must be between 1 and 2147483647",
    ),
    "a duration in the wrong form": (
        ['"LockDuration": "1 minute"'],
        3,
        'LockDuration of queue \'orders\' must be a duration such as "PT1M" or "P14D", '
        'not "1 minute"',
    ),
    "a number for a duration": (
        ['"LockDuration": 60'],
        3,
        'LockDuration of queue \'orders\' must be a duration such as "PT1M" or "P14D", not 60',
    ),
    "a text for a number": (
        ['"MaxDeliveryCount": "3"'],
        3,
        "MaxDeliveryCount of queue 'orders' must be a whole number, not \"3\"",
    ),
    "a boolean for a number": (
        ['"MaxDeliveryCount": true'],
        3,
        "MaxDeliveryCount of queue 'orders' must be a whole number, not true",
    ),
    "a fraction for a number": (
        ['"MaxDeliveryCount": 3.5'],
        3,
        "MaxDeliveryCount of queue 'orders' must be a whole number, not 3.5",
    ),
    "a text for a boolean": (
        ['"RequiresSession": "false"'],
        3,
        "RequiresSession of queue 'orders' must be true or false, not \"false\"",
    ),
    "a list for a text": (
        ['"ForwardTo": ["a"]'],
        3,
        "ForwardTo of queue 'orders' must be a string, not a list",
    ),
    "a status that there is not": (
        ['"Status": "Paused"'],
        3,
        "Status of queue 'orders' must be one of Active, Disabled, SendDisabled, "
        'ReceiveDisabled, not "Paused"',
    ),
    "a letter in the wrong case": (
        ['"lockDuration": "PT1M"'],
        3,
        "Properties of queue 'orders' has no \"lockDuration\": did you mean LockDuration?",
    ),
    "a misspelt property": (
        ['"RequireSession": true'],
        3,
        "Properties of queue 'orders' has no \"RequireSession\": did you mean RequiresSession?",
    ),
    "a property given twice": (
        ['"LockDuration": "PT1M"', '"LockDuration": "PT2M"'],
        4,
        "Properties of queue 'orders' has LockDuration twice, first in line 3",
    ),
    "a target that there is not": (
        ['"ForwardTo": "elsewhere"'],
        2,
        "queue 'orders' forwards to 'elsewhere', which this file does not define",
    ),
    "two settings that cannot be combined": (
        ['"EnableExpress": true', '"RequiresDuplicateDetection": true'],
        2,
        "queue 'orders': EnableExpress and RequiresDuplicateDetection cannot be combined",
    ),
}


@pytest.mark.parametrize(("properties", "line", "why"), MISTAKES.values(), ids=MISTAKES)
def test_an_impossible_setting_is_reported_with_its_line(load, properties, line, why):
    assert reason(load, queue_file(properties)) == (line, why)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('{\n"UserConfig": }', 2, "not JSON: Expecting value (column 15)"),
        ("", 1, "not JSON: Expecting value (column 1)"),
        ("[" * 100_000, 1, "nested too deeply"),
        ("[]", 1, "the file must be an object, not a list"),
        ("{}", 1, "the file has no UserConfig"),
        ('{"Userconfig": {}}', 1, 'the file has no "Userconfig": did you mean UserConfig?'),
        ('\n{\n"UserConfig": {}}', 3, "UserConfig needs at least one of Namespaces"),
        (
            '{"UserConfig": {"Namespaces": {}}}',
            1,
            "Namespaces must be a list, not an object",
        ),
        ('{"UserConfig": {"Namespaces": [\n{}]}}', 2, "this namespace has no Name"),
        (
            '{"UserConfig": {"Namespaces": [\n{"Name": "a"},\n{"Name": "A"}]}}',
            3,
            "namespace 'A' is defined twice, first in line 2",
        ),
        (
            '{"UserConfig": {"Namespaces": [\n{"Name": "1st"}]}}',
            2,
            "namespace name '1st' is not valid: up to 50 letters, digits and '-', starting with a "
            "letter and ending with a letter or digit",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [\n{"Properties": {}}]}]}}',
            2,
            "this queue has no Name",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": ["orders"]}]}}',
            1,
            'a queue must be an object, not "orders"',
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}, {"Name": "Q"}'
            "]}]}}",
            1,
            "queue 'Q' is defined twice, first in line 1",
        ),
        (
            '{"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q"}], "Topics": [\n'
            '{"Name": "Q"}]}]}}',
            2,
            "topic 'Q' is defined twice, first in line 1",
        ),
    ],
)
def test_a_file_of_the_wrong_shape_is_reported_with_its_line(load, text, line, why):
    assert reason(load, text) == (line, why)


def test_a_queue_name_that_is_not_valid_is_reported_on_its_line(load):
    line, why = reason(load, queue_file([], name='"-orders"'))

    assert line == 2
    assert why.startswith("queue name '-orders' is not valid")


def test_a_file_that_is_not_there_is_reported_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.json: cannot be read: No such file"):
        load_config(tmp_path / "missing.json")


def test_a_file_that_is_not_text_is_reported_by_name(tmp_path):
    path = tmp_path / "Config.json"
    path.write_bytes(b'{"UserConfig": "\xff"}')

    with pytest.raises(ConfigError, match=r"Config\.json: is not UTF-8 text \(byte 16\)"):
        load_config(path)


def test_lines_are_counted_past_texts_that_look_like_json(load):
    tricky = json.dumps('a "quoted" {thing}: [1, 2], \\ and \n more')

    line, _ = reason(load, queue_file([f'"UserMetadata": {tricky}', '"MaxDeliveryCount": -1']))

    assert line == 4
