// What an application on Node does with topics, subscriptions and their rules, through the official client.
//
// As in scenarios.mjs: each scenario has a topic of its own, named like the scenario, with three subscriptions:
// `all` and `some`, which take everything until the scenario changes their rules, and `sessions`. One line of JSON
// per scenario goes to stdout; tests/interop/test_node.py makes the topics and turns the lines into tests.

import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";
import { range, runAll } from "./run.mjs";

const connectionString = process.env.PAIRBUS_CONNECTION_STRING;
const impatient = { retryOptions: { maxRetries: 0, timeoutInMs: 5_000 } };

const scenarios = {
  async "a message to a topic comes from each subscription"({ client, topic }) {
    const sent = { body: { order: 7 }, subject: "red", applicationProperties: { n: 1, text: "ünï" } };
    await client.createSender(topic).sendMessages([sent, { ...sent, subject: "blue" }]);
    for (const subscription of ["all", "some"]) {
      const receiver = client.createReceiver(topic, subscription);
      const messages = await receive(receiver, 2);
      assert.deepEqual(messages.map((message) => message.subject), ["red", "blue"]);
      for (const message of messages) {
        assert.deepEqual(message.body, sent.body);
        assert.deepEqual(message.applicationProperties, sent.applicationProperties);
        await receiver.completeMessage(message);
      }
      assert.deepEqual(await receiver.peekMessages(10), []);
    }
  },

  async "settles every way on a subscription"({ client, topic }) {
    await client.createSender(topic).sendMessages(["defer", "dead", "abandon"].map((body) => ({ body })));
    const receiver = client.createReceiver(topic, "some");
    const [deferred, dead, abandoned] = await receive(receiver, 3);
    await receiver.deferMessage(deferred);
    await receiver.deadLetterMessage(dead, { deadLetterReason: "reason" });
    await receiver.abandonMessage(abandoned, { tried: 1 });
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    assert.equal(again.applicationProperties.tried, 1);
    await receiver.completeMessage(again);
    const [late] = await receiver.receiveDeferredMessages(deferred.sequenceNumber);
    await receiver.completeMessage(late);
    const deadLetters = client.createReceiver(topic, "some", { subQueueType: "deadLetter" });
    const [deadLettered] = await receive(deadLetters, 1);
    assert.equal(deadLettered.deadLetterReason, "reason");
    await deadLetters.completeMessage(deadLettered);
    assert.deepEqual(await receiver.peekMessages(10), []);
    assert.equal((await client.createReceiver(topic, "all").peekMessages(10)).length, 3);
  },

  async "schedules on a topic and cancels"({ client, topic }) {
    const sender = client.createSender(topic);
    const tomorrow = new Date(Date.now() + 86_400_000);
    const numbers = await sender.scheduleMessages([{ body: 1 }, { body: 2 }], tomorrow);
    await sender.cancelScheduledMessages(numbers);
    await fails(sender.cancelScheduledMessages(numbers[0]), "MessageNotFound");
    const [soon] = await sender.scheduleMessages({ body: 3 }, new Date(Date.now() + 500));
    const [message] = await receive(client.createReceiver(topic, "some"), 1);
    assert.equal(message.body, 3);
    assert.equal(Number(message.enqueuedSequenceNumber), soon.toNumber());
  },

  async "accepts sessions of a subscription"({ client, topic }) {
    const sender = client.createSender(topic);
    await sender.sendMessages(range(6).map((body) => ({ body, sessionId: body % 2 ? "odd" : "even" })));
    const session = await client.acceptSession(topic, "sessions", "odd");
    const messages = await receive(session, 3);
    assert.deepEqual(messages.map((message) => message.body), [1, 3, 5]);
    await session.setSessionState("state");
    for (const message of messages) await session.completeMessage(message);
    await session.close();
    const next = await client.acceptNextSession(topic, "sessions");
    assert.equal(next.sessionId, "even");
    await next.close();
    const again = await client.acceptSession(topic, "sessions", "odd");
    assert.equal(await again.getSessionState(), "state");
    await again.close();
  },

  async "a new subscription has the rule that takes everything"({ client, topic }) {
    const rules = await client.createRuleManager(topic, "some").getRules();
    assert.deepEqual(rules, [{ name: "$Default", filter: { sqlExpression: "1=1" }, action: {} }]);
  },

  async "creates rules of every kind and lists them as they are"({ client, topic }) {
    const manager = client.createRuleManager(topic, "some");
    const correlation = {
      correlationId: "c", messageId: "m", to: "t", replyTo: "r", subject: "s", sessionId: "i",
      replyToSessionId: "j", contentType: "x", applicationProperties: { text: "a", number: 5, flag: true },
    };
    await manager.createRule("sql", { sqlExpression: "n > 1 AND sys.Label = 'x'" });
    await manager.createRule("acts", { sqlExpression: "n > 1" }, { sqlExpression: "SET big = true" });
    await manager.createRule("equal", correlation);
    await manager.createRule("short", { subject: "s" });
    const rules = Object.fromEntries((await manager.getRules()).map((rule) => [rule.name, rule]));
    assert.deepEqual(Object.keys(rules), ["$Default", "sql", "acts", "equal", "short"]);
    assert.deepEqual(rules.sql, { name: "sql", filter: { sqlExpression: "n > 1 AND sys.Label = 'x'" }, action: {} });
    assert.deepEqual(rules.acts.action, { sqlExpression: "SET big = true" });
    assert.deepEqual(rules.equal.filter, correlation);
    assert.equal(rules.short.filter.subject, "s");
    assert.equal(rules.short.filter.messageId ?? null, null);
  },

  async "rules decide what comes, and actions what it looks like"({ client, topic }) {
    const manager = client.createRuleManager(topic, "some");
    await manager.deleteRule("$Default");
    await manager.createRule("red", { subject: "red" });
    await manager.createRule("many", { sqlExpression: "n >= 3" }, { sqlExpression: "SET many = 'yes'; REMOVE n" });
    const sender = client.createSender(topic);
    await sender.sendMessages(range(5).map((n) => ({
      body: n, subject: n % 2 ? "red" : "blue", applicationProperties: { n, kept: 1 },
    })));
    const messages = await receive(client.createReceiver(topic, "some"), 4);
    assert.deepEqual(
      messages.map(({ body, applicationProperties }) => [body, applicationProperties]),
      [
        [1, { n: 1, kept: 1 }],
        [3, { n: 3, kept: 1 }],
        [3, { kept: 1, many: "yes", RuleName: "many" }],
        [4, { kept: 1, many: "yes", RuleName: "many" }],
      ],
    );
    assert.equal((await client.createReceiver(topic, "all").peekMessages(10)).length, 5);
  },

  async "a subscription without rules takes nothing"({ client, topic }) {
    const manager = client.createRuleManager(topic, "some");
    await manager.deleteRule("$Default");
    assert.deepEqual(await manager.getRules(), []);
    await client.createSender(topic).sendMessages({ body: 1 });
    assert.deepEqual(await client.createReceiver(topic, "some").peekMessages(10), []);
  },

  async "lists more rules than a page holds"({ client, topic }) {
    const manager = client.createRuleManager(topic, "some");
    await manager.deleteRule("$Default");
    const names = range(150).map((n) => `rule-${n}`);
    for (const name of names) await manager.createRule(name, { sqlExpression: `n = ${name.slice(5)}` });
    assert.deepEqual((await manager.getRules()).map((rule) => rule.name), names);
  },

  async "refuses a second rule of a name, and what is no rule"({ client, topic }) {
    const manager = client.createRuleManager(topic, "some");
    await manager.createRule("one", { sqlExpression: "1=1" });
    await fails(manager.createRule("one", { sqlExpression: "1=0" }), "MessagingEntityAlreadyExists");
    await fails(manager.deleteRule("nobody"), "MessagingEntityNotFound");
    await assert.rejects(manager.createRule("bad", { sqlExpression: "n >" }), /n >/);
    await assert.rejects(manager.createRule("a/b", { sqlExpression: "1=1" }), /a\/b/);
    assert.deepEqual((await manager.getRules()).map((rule) => rule.name), ["$Default", "one"]);
  },

  async "an unknown subscription is not found"({ client, topic }) {
    await fails(client.createReceiver(topic, "nobody").receiveMessages(1), "MessagingEntityNotFound");
    await fails(client.createRuleManager(topic, "nobody").getRules(), "MessagingEntityNotFound");
  },
};


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

await runAll(scenarios, (topic) => ({ client: new ServiceBusClient(connectionString, impatient), topic }));
