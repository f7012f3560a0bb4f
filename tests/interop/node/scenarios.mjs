// What an application on Node does with a queue, through the official client, unmodified.
//
// Each scenario works on a queue (or two) of its own, named like the scenario, so they run at the same
// time. One line of JSON per scenario goes to stdout: {"name", "ok", "milliseconds", "error"}.
// tests/interop/test_node.py starts the broker, makes the queues and turns the lines into tests.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { delay as pause, ServiceBusClient } from "@azure/service-bus";
import { ServiceBusClient as NextServiceBusClient } from "@azure/service-bus-next";
import WebSocket from "ws";
import { range, runAll } from "./run.mjs";

const connectionString = process.env.PAIRBUS_CONNECTION_STRING;
const encryptedConnectionString = process.env.PAIRBUS_TLS_CONNECTION_STRING;
const certificateAuthority = readFileSync(process.env.PAIRBUS_CA_FILE);
const impatient = { retryOptions: { maxRetries: 0, timeoutInMs: 5_000 } };

const scenarios = {
  async "sends and receives a message with all its properties"({ client, queue }) {
    const sent = {
      body: { order: 7, lines: ["a", "b"] },
      messageId: "id-1",
      correlationId: "correlation",
      contentType: "application/json",
      subject: "subject",
      to: "to",
      replyTo: "reply",
      replyToSessionId: "reply-session",
      partitionKey: "key",
      applicationProperties: { text: "ünï", number: 42, fraction: 1.5, negative: -3, flag: true, nothing: null },
    };
    await client.createSender(queue).sendMessages({ ...sent, timeToLive: 60_000 });
    const [message] = await receive(client.createReceiver(queue), 1);
    for (const [name, value] of Object.entries(sent)) assert.deepEqual(message[name], value, name);
    assert.equal(message.deliveryCount, 0);
    assert.equal(message.state, "active");
    assert.ok(message.sequenceNumber.toNumber() >= 1);
    assert.match(message.lockToken, /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    // The client works it out from the sender's clock and the broker's, so it is not exact.
    assert.ok(Math.abs(message.timeToLive - 60_000) < 5_000, `time to live ${message.timeToLive}`);
    assert.ok(message.lockedUntilUtc > new Date());
  },

  async "bodies of every kind come back as they were"({ client, queue }) {
    const bodies = [
      { body: Buffer.from([0, 1, 255]) },
      { body: "text" },
      { body: null },
      { bodyType: "value", body: { a: 1 } },
      { bodyType: "value", body: "text" },
      { bodyType: "sequence", body: [[1, "two"], [3]] },
    ];
    const sender = client.createSender(queue);
    for (const body of bodies) await sender.sendMessages(body);
    const messages = await receive(client.createReceiver(queue), bodies.length);
    messages.forEach((message, index) => assert.deepEqual(message.body, bodies[index].body));
  },

  async "sends a list at once and keeps its order"({ client, queue }) {
    const bodies = range(50);
    await client.createSender(queue).sendMessages(
      bodies.map((body) => ({ body, applicationProperties: { index: body }, partitionKey: "same" })),
    );
    const messages = await receive(client.createReceiver(queue), bodies.length);
    assert.deepEqual(messages.map((message) => message.body), bodies);
    assert.deepEqual(messages.map((message) => message.applicationProperties.index), bodies);
  },

  async "fills a batch up to the limit that the queue states"({ client, queue }) {
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    assert.equal(batch.maxSizeInBytes, 256 * 1024);
    const body = Buffer.alloc(10_000, 1);
    while (batch.tryAddMessage({ body }));
    assert.ok(batch.count > 20, `${batch.count} messages of 10 kB in the batch`);
    await sender.sendMessages(batch);
    const messages = await receive(client.createReceiver(queue), batch.count);
    assert.ok(messages.every((message) => message.body.equals(body)));
  },

  async "many sends in flight all arrive once"({ client, queue }) {
    const sender = client.createSender(queue);
    await Promise.all(range(200).map((body) => sender.sendMessages({ body })));
    const receiver = client.createReceiver(queue);
    const messages = await receive(receiver, 200);
    assert.deepEqual(sorted(messages.map((message) => message.body)), range(200));
    await Promise.all(messages.map((message) => receiver.completeMessage(message)));
    assert.deepEqual(await receiver.peekMessages(10), []);
  },

  async "completes"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: 1 });
    const receiver = client.createReceiver(queue);
    const [message] = await receive(receiver, 1);
    await receiver.completeMessage(message);
    assert.deepEqual(await receiver.peekMessages(10), []);
    await assert.rejects(receiver.completeMessage(message), /already.*settled/i);
  },

  async "abandons with changed properties and gets it again"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: 1, applicationProperties: { kept: "yes" } });
    const receiver = client.createReceiver(queue);
    const [first] = await receive(receiver, 1);
    await receiver.abandonMessage(first, { tried: 1 });
    const [second] = await receive(receiver, 1);
    assert.equal(second.deliveryCount, 1);
    assert.ok(second.sequenceNumber.equals(first.sequenceNumber));
    assert.deepEqual(second.applicationProperties, { kept: "yes", tried: 1 });
  },

  async "defers and receives by sequence number"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: "later" });
    const receiver = client.createReceiver(queue);
    const [message] = await receive(receiver, 1);
    await receiver.deferMessage(message, { why: "busy" });
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
    assert.equal((await receiver.peekMessages(1))[0].state, "deferred");
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    assert.equal(deferred.body, "later");
    assert.equal(deferred.applicationProperties.why, "busy");
    await receiver.completeMessage(deferred);
    assert.deepEqual(await receiver.peekMessages(1), []);
    await fails(receiver.receiveDeferredMessages(message.sequenceNumber), "MessageNotFound");
  },

  async "dead-letters with a reason and receives from the dead-letter queue"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: "bad", messageId: "x" });
    const receiver = client.createReceiver(queue);
    const [message] = await receive(receiver, 1);
    await receiver.deadLetterMessage(message, {
      deadLetterReason: "reason", deadLetterErrorDescription: "description", extra: "property",
    });
    const dead = client.createReceiver(queue, { subQueueType: "deadLetter" });
    assert.equal((await dead.peekMessages(1))[0].messageId, "x");
    const [found] = await receive(dead, 1);
    assert.equal(found.deadLetterReason, "reason");
    assert.equal(found.deadLetterErrorDescription, "description");
    assert.equal(found.applicationProperties.extra, "property");
    assert.equal(found.body, "bad");
    await dead.completeMessage(found);
    assert.deepEqual(await dead.peekMessages(1), []);
  },

  async "too many deliveries end in the dead-letter queue"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: 1 });
    const receiver = client.createReceiver(queue);
    for (const count of range(2)) {
      const [message] = await receive(receiver, 1);
      assert.equal(message.deliveryCount, count);
      await receiver.abandonMessage(message);
    }
    const [dead] = await receive(client.createReceiver(queue, { subQueueType: "deadLetter" }), 1);
    assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
  },

  async "expired messages are dead-lettered where the queue says so"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: 1, timeToLive: 200 });
    const [dead] = await receive(client.createReceiver(queue, { subQueueType: "deadLetter" }), 1);
    assert.equal(dead.deadLetterReason, "TTLExpiredException");
  },

  async "receives and deletes"({ client, queue }) {
    await client.createSender(queue).sendMessages(range(10).map((body) => ({ body })));
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const messages = await receive(receiver, 10);
    assert.deepEqual(messages.map((message) => message.body), range(10));
    assert.equal(messages[0].lockToken, undefined);
    assert.deepEqual(await receiver.peekMessages(1), []);
  },

  async "an empty receive ends in time and the link stays usable"({ client, queue }) {
    const receiver = client.createReceiver(queue);
    const started = Date.now();
    assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 300 }), []);
    assert.ok(Date.now() - started < 3_000);
    await client.createSender(queue).sendMessages(range(3).map((body) => ({ body })));
    assert.deepEqual((await receive(receiver, 3)).map((message) => message.body), range(3));
    assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 300 }), []);
  },

  async "a subscription of handlers gets each message once"({ client, queue }) {
    await client.createSender(queue).sendMessages(range(30).map((body) => ({ body })));
    const bodies = [];
    const errors = [];
    const receiver = client.createReceiver(queue);
    await new Promise((resolve) => {
      receiver.subscribe(
        {
          async processMessage(message) {
            if (bodies.push(message.body) === 30) resolve();
          },
          async processError({ error }) {
            errors.push(error);
          },
        },
        { maxConcurrentCalls: 5 },
      );
    });
    await receiver.close();
    assert.deepEqual([sorted(bodies), errors], [range(30), []]);
    assert.deepEqual(await client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
  },

  async "iterates over messages"({ client, queue }) {
    await client.createSender(queue).sendMessages(range(3).map((body) => ({ body })));
    const receiver = client.createReceiver(queue);
    const bodies = [];
    for await (const message of receiver.getMessageIterator()) {
      bodies.push(message.body);
      await receiver.completeMessage(message);
      if (bodies.length === 3) break;
    }
    assert.deepEqual(bodies, range(3));
  },

  async "renews a message lock"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: 1 });
    const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await receive(receiver, 1);
    const before = message.lockedUntilUtc;
    await pause(50);
    assert.ok((await receiver.renewMessageLock(message)) > before);
    await receiver.completeMessage(message);
  },

  async "a lost lock is an error and the message comes again"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: 1 });
    const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    const [first] = await receive(receiver, 1);
    await pause(first.lockedUntilUtc - Date.now() + 300);
    await fails(receiver.completeMessage(first), "MessageLockLost");
    await fails(receiver.renewMessageLock(first), "MessageLockLost");
    const [second] = await receive(receiver, 1);
    assert.equal(second.deliveryCount, 1);
    await receiver.completeMessage(second);
  },

  async "settles by lock token after the link is gone"({ client, queue }) {
    await client.createSender(queue).sendMessages(range(2).map((body) => ({ body })));
    const gone = client.createReceiver(queue);
    const [first, second] = await receive(gone, 2);
    await gone.close();
    const other = client.createReceiver(queue);
    await other.completeMessage(first);
    await other.deadLetterMessage(second, { deadLetterReason: "by token" });
    const [dead] = await receive(client.createReceiver(queue, { subQueueType: "deadLetter" }), 1);
    assert.equal(dead.deadLetterReason, "by token");
    assert.deepEqual(await other.peekMessages(1), []);
  },

  async "peeks without locking and goes on where it stopped"({ client, queue }) {
    await client.createSender(queue).sendMessages(range(5).map((body) => ({ body })));
    const receiver = client.createReceiver(queue);
    assert.deepEqual((await receiver.peekMessages(2)).map((message) => message.body), [0, 1]);
    const rest = await receiver.peekMessages(10);
    assert.deepEqual(rest.map((message) => message.body), [2, 3, 4]);
    const again = await receiver.peekMessages(2, { fromSequenceNumber: rest[1].sequenceNumber });
    assert.deepEqual(again.map((message) => message.body), [3, 4]);
    assert.deepEqual((await receive(receiver, 5)).map((message) => message.deliveryCount), Array(5).fill(0));
  },

  async "schedules, peeks and cancels"({ client, queue }) {
    const sender = client.createSender(queue);
    const tomorrow = new Date(Date.now() + 86_400_000);
    const numbers = await sender.scheduleMessages([{ body: 1 }, { body: 2 }], tomorrow);
    assert.equal(numbers.length, 2);
    const receiver = client.createReceiver(queue);
    const [scheduled] = await receiver.peekMessages(1);
    assert.equal(scheduled.state, "scheduled");
    assert.equal(scheduled.scheduledEnqueueTimeUtc.getTime(), tomorrow.getTime());
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
    await sender.cancelScheduledMessages(numbers);
    await fails(sender.cancelScheduledMessages(numbers), "MessageNotFound");
    assert.deepEqual(await client.createReceiver(queue).peekMessages(1, { fromSequenceNumber: numbers[0] }), []);
  },

  async "a scheduled message appears on time"({ client, queue }) {
    const sender = client.createSender(queue);
    const due = new Date(Date.now() + 700);
    await sender.scheduleMessages({ body: "by management" }, due);
    await sender.sendMessages({ body: "by annotation", scheduledEnqueueTimeUtc: due });
    const messages = await receive(client.createReceiver(queue), 2);
    assert.deepEqual(sorted(messages.map((message) => message.body)), ["by annotation", "by management"]);
    for (const { enqueuedTimeUtc } of messages) assert.ok(enqueuedTimeUtc >= due, `${enqueuedTimeUtc} ${due}`);
  },

  async "duplicates inside the window vanish"({ client, queue }) {
    const sender = client.createSender(queue);
    await sender.sendMessages([{ body: 1, messageId: "a" }, { body: 2, messageId: "b" }]);
    await sender.sendMessages({ body: 3, messageId: "a" });
    const messages = await client.createReceiver(queue).peekMessages(10);
    assert.deepEqual(messages.map((message) => message.body), [1, 2]);
  },

  async "a message above the limit is refused and the sender goes on"({ client, queue }) {
    const sender = client.createSender(queue);
    await fails(sender.sendMessages({ body: Buffer.alloc(300 * 1024) }), "MessageSizeExceeded");
    await sender.sendMessages({ body: "small" });
    assert.equal((await receive(client.createReceiver(queue), 1))[0].body, "small");
  },

  async "accepts a named session and receives in order"({ client, queue }) {
    const sender = client.createSender(queue);
    await sender.sendMessages(range(10).map((body) => ({ body, sessionId: body % 2 ? "odd" : "even" })));
    const session = await client.acceptSession(queue, "odd");
    assert.equal(session.sessionId, "odd");
    assert.ok(session.sessionLockedUntilUtc > new Date());
    const messages = await receive(session, 5);
    assert.deepEqual(messages.map((message) => message.body), [1, 3, 5, 7, 9]);
    assert.ok(messages.every((message) => message.sessionId === "odd"));
    for (const message of messages) await session.completeMessage(message);
    assert.deepEqual(await session.receiveMessages(1, { maxWaitTimeInMs: 300 }), []);
    await session.close();
  },

  async "accepts the next session, and times out when there is none"({ client, queue }) {
    await client.createSender(queue).sendMessages([{ body: 1, sessionId: "a" }, { body: 2, sessionId: "b" }]);
    const first = await client.acceptNextSession(queue);
    const second = await client.acceptNextSession(queue);
    assert.deepEqual(sorted([first.sessionId, second.sessionId]), ["a", "b"]);
    const hurried = connect({ retryOptions: { maxRetries: 0, timeoutInMs: 1_000 } });
    await fails(hurried.acceptNextSession(queue), "ServiceTimeout");
    await hurried.close();
  },

  async "waits for a session that appears later"({ client, queue }) {
    const waiting = client.acceptNextSession(queue);
    await pause(300);
    await client.createSender(queue).sendMessages({ body: 1, sessionId: "late" });
    assert.equal((await waiting).sessionId, "late");
  },

  async "a session is locked for one receiver until it closes"({ client, queue }) {
    const held = await client.acceptSession(queue, "s");
    await fails(client.acceptSession(queue, "s"), "SessionCannotBeLocked");
    await held.close();
    await (await client.acceptSession(queue, "s")).close();
  },

  async "session state is kept and cleared"({ client, queue }) {
    const first = await client.acceptSession(queue, "s");
    assert.equal(await first.getSessionState(), null);
    await first.setSessionState({ step: 3 });
    await first.close();
    const second = await client.acceptSession(queue, "s");
    assert.deepEqual(await second.getSessionState(), { step: 3 });
    await second.setSessionState(null);
    assert.equal(await second.getSessionState(), null);
  },

  async "renews a session lock, and tells of a lost one"({ client, queue }) {
    await client.createSender(queue).sendMessages({ body: 1, sessionId: "s" });
    const session = await client.acceptSession(queue, "s", { maxAutoLockRenewalDurationInMs: 0 });
    const before = session.sessionLockedUntilUtc;
    await pause(50);
    assert.ok((await session.renewSessionLock()) > before);
    const [message] = await receive(session, 1);
    await pause(session.sessionLockedUntilUtc - Date.now() + 500);
    await fails(session.completeMessage(message), "SessionLockLost");
    const again = await client.acceptSession(queue, "s");
    assert.equal((await receive(again, 1))[0].deliveryCount, 1);
  },

  async "settles every way inside a session"({ client, queue }) {
    await client.createSender(queue).sendMessages(range(3).map((body) => ({ body, sessionId: "s" })));
    const session = await client.acceptSession(queue, "s");
    const [zero, one, two] = await receive(session, 3);
    await session.deferMessage(zero);
    await session.deadLetterMessage(one, { deadLetterReason: "reason" });
    await session.abandonMessage(two);
    const [again] = await receive(session, 1);
    assert.deepEqual([again.body, again.deliveryCount], [2, 1]);
    const [deferred] = await session.receiveDeferredMessages(zero.sequenceNumber);
    await session.completeMessage(deferred);
    assert.deepEqual((await session.peekMessages(10)).map((message) => message.body), [2]);
    const [dead] = await receive(client.createReceiver(queue, { subQueueType: "deadLetter" }), 1);
    assert.deepEqual([dead.body, dead.sessionId, dead.deadLetterReason], [1, "s", "reason"]);
  },

  async "a queue with sessions refuses what has none"({ client, queue }) {
    await assert.rejects(client.createSender(queue).sendMessages({ body: 1 }), { name: "ServiceBusError" });
    await assert.rejects(client.createReceiver(queue).receiveMessages(1), { name: "ServiceBusError" });
  },

  async "deletes messages in bulk"({ queue }) {
    const client = new NextServiceBusClient(connectionString, impatient);
    await client.createSender(queue).sendMessages(range(25).map((body) => ({ body })));
    const receiver = client.createReceiver(queue);
    const beforeEnqueueTime = new Date(Date.now() + 5_000);
    assert.equal(await receiver.deleteMessages({ maxMessageCount: 10, beforeEnqueueTime }), 10);
    assert.deepEqual((await receiver.peekMessages(1)).map((message) => message.body), [10]);
    assert.equal(await receiver.purgeMessages({ beforeEnqueueTime }), 15);
    assert.equal(await receiver.deleteMessages({ maxMessageCount: 10, beforeEnqueueTime }), 0);
    await client.close();
  },

  async "an unknown queue is not found"({ client }) {
    await fails(client.createSender("no-such-queue").sendMessages({ body: 1 }), "MessagingEntityNotFound");
    await fails(client.createReceiver("no-such-queue").receiveMessages(1), "MessagingEntityNotFound");
  },

  async "a wrong key is unauthorized"({ queue }) {
    const wrong = connectionString.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=wrong");
    const client = new ServiceBusClient(wrong, impatient);
    await fails(client.createSender(queue).sendMessages({ body: 1 }), "UnauthorizedAccess");
    await client.close();
  },

  async "works over TLS"({ queue }) {
    await roundTrip(new ServiceBusClient(encryptedConnectionString, impatient), queue);
  },

  async "works over WebSocket"({ queue }) {
    const webSocketOptions = { webSocket: WebSocket, webSocketConstructorOptions: { ca: certificateAuthority } };
    await roundTrip(new ServiceBusClient(encryptedConnectionString, { ...impatient, webSocketOptions }), queue);
  },
};

const sorted = (values) => [...values].sort((a, b) => (a < b ? -1 : 1));
const connect = (options = impatient) => new ServiceBusClient(connectionString, options);

/** As many calls as it takes: one call may return early with fewer messages. */
async function receive(receiver, count) {
  const messages = [];
  const deadline = Date.now() + 10_000;
  while (messages.length < count && Date.now() < deadline) {
    messages.push(...(await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs: 2_000 })));
  }
  assert.equal(messages.length, count, `received ${messages.length} of ${count} messages`);
  return messages;
}

async function fails(promise, code) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code, `${error.name} ${error.code}: ${error.message}`);
    return true;
  });
}

async function roundTrip(client, queue) {
  await client.createSender(queue).sendMessages({ body: "x".repeat(100_000) });
  const receiver = client.createReceiver(queue);
  const [message] = await receive(receiver, 1);
  assert.equal(message.body.length, 100_000);
  await receiver.completeMessage(message);
  await client.close();
}

await runAll(scenarios, (queue) => ({ client: connect(), queue }));
