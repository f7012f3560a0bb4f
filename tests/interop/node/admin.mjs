// How a namespace is managed from Node, through the official ServiceBusAdministrationClient, unmodified.
//
// Each scenario uses names of its own, so they run at the same time. One line of JSON per scenario goes
// to stdout: {"name", "ok", "milliseconds", "error"}. tests/interop/test_node.py starts an empty
// broker and turns the lines into tests. The client trusts the broker by NODE_EXTRA_CA_CERTS.

import assert from "node:assert/strict";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import { range, runAll } from "./run.mjs";

const connectionString = process.env.PAIRBUS_CONNECTION_STRING;
const forever = "P10675199DT2H48M5.4775807S";

const scenarios = {
  async "a queue has the defaults of the service"({ admin, name }) {
    const queue = await admin.createQueue(name);
    assert.deepEqual(plain(queue), {
      name,
      forwardTo: undefined,
      userMetadata: undefined,
      lockDuration: "PT1M",
      maxSizeInMegabytes: 1024,
      maxDeliveryCount: 10,
      enablePartitioning: false,
      requiresSession: false,
      enableBatchedOperations: true,
      defaultMessageTimeToLive: forever,
      autoDeleteOnIdle: forever,
      requiresDuplicateDetection: false,
      duplicateDetectionHistoryTimeWindow: "PT10M",
      deadLetteringOnMessageExpiration: false,
      forwardDeadLetteredMessagesTo: undefined,
      authorizationRules: undefined,
      status: "Active",
      enableExpress: false,
      availabilityStatus: "Available",
      maxMessageSizeInKilobytes: 256,
    });
    assert.deepEqual(plain(await admin.getQueue(name)), plain(queue));
  },

  async "a queue is made, changed and removed"({ admin, name }) {
    const settings = {
      lockDuration: "PT13S",
      maxSizeInMegabytes: 2048,
      maxDeliveryCount: 14,
      enableBatchedOperations: false,
      defaultMessageTimeToLive: "PT11M",
      autoDeleteOnIdle: "PT10M",
      duplicateDetectionHistoryTimeWindow: "PT12M",
      deadLetteringOnMessageExpiration: true,
      userMetadata: "a <b> & 'ü'",
      status: "SendDisabled",
    };
    const queue = await admin.createQueue(name, { ...settings, requiresSession: true });
    for (const [key, value] of Object.entries(settings)) assert.deepEqual(queue[key], value, key);
    queue.maxDeliveryCount = 3;
    const changed = await admin.updateQueue(queue);
    assert.deepEqual([changed.maxDeliveryCount, changed.lockDuration], [3, "PT13S"]);
    assert.ok(await admin.queueExists(name));
    await admin.deleteQueue(name);
    assert.ok(!(await admin.queueExists(name)));
  },

  async "names with slashes work everywhere"({ admin, name }) {
    const slashed = `${name}/with/Slashes`;
    assert.equal((await admin.createQueue(`${slashed}/q`)).name, `${slashed}/q`);
    assert.equal((await admin.getQueue(`${slashed}/q`)).name, `${slashed}/q`);
    await admin.createTopic(slashed);
    const subscription = await admin.createSubscription(slashed, "desk");
    assert.deepEqual([subscription.topicName, subscription.subscriptionName], [slashed, "desk"]);
    await admin.createRule(slashed, "desk", "mine", { sqlExpression: "a = 1" });
    assert.deepEqual(await names(admin.listRules(slashed, "desk")), ["$Default", "mine"]);
    await admin.deleteTopic(slashed);
    assert.ok(!(await admin.subscriptionExists(slashed, "desk")));
  },

  async "forwarding is set, shown and taken back"({ admin, name }) {
    await admin.createTopic(`${name}-target`);
    const queue = await admin.createQueue(name, {
      forwardTo: `${name}-target`,
      forwardDeadLetteredMessagesTo: `${name}-target`,
    });
    assert.match(queue.forwardTo, new RegExp(`^sb://localhost:\\d+/${name}-target$`));
    assert.equal(queue.forwardDeadLetteredMessagesTo, queue.forwardTo);
    queue.forwardTo = undefined;
    assert.equal((await admin.updateQueue(queue)).forwardTo, undefined);
    await fails(admin.createQueue(`${name}-other`, { forwardTo: "nobody" }), "ServiceError", /no such queue or topic/);
  },

  async "authorization rules come back as they were"({ admin, name }) {
    const rule = {
      claimType: "SharedAccessKey",
      accessRights: ["Manage", "Send", "Listen"],
      keyName: "own",
      primaryKey: "cHJpbWFyeQ==",
      secondaryKey: "c2Vjb25kYXJ5",
    };
    const one = { ...rule, keyName: "one", accessRights: ["Send"] };
    const queue = await admin.createQueue(name, { authorizationRules: [rule, one] });
    assert.deepEqual(queue.authorizationRules, [rule, one]);
    const topic = await admin.createTopic(`${name}-topic`, { authorizationRules: [rule] });
    assert.deepEqual(topic.authorizationRules, [rule]);
    const own = connectionString
      .replace(/SharedAccessKeyName=[^;]*/, "SharedAccessKeyName=own")
      .replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=c2Vjb25kYXJ5");
    const ofOneQueue = new ServiceBusAdministrationClient(own);
    assert.equal((await ofOneQueue.getQueue(name)).name, name);
    await fails(ofOneQueue.getQueue("nobody"), "UnauthorizedRequestError");
  },

  async "a topic and its subscriptions are made, changed and removed"({ admin, name }) {
    const topic = await admin.createTopic(name, { userMetadata: "meta", supportOrdering: false });
    assert.deepEqual([topic.userMetadata, topic.supportOrdering, topic.enableExpress], ["meta", false, false]);
    topic.maxSizeInMegabytes = 2048;
    assert.equal((await admin.updateTopic(topic)).maxSizeInMegabytes, 2048);
    const desk = await admin.createSubscription(name, "desk", { requiresSession: true, lockDuration: "PT10S" });
    assert.deepEqual([desk.requiresSession, desk.lockDuration, desk.maxDeliveryCount], [true, "PT10S", 10]);
    desk.maxDeliveryCount = 5;
    assert.equal((await admin.updateSubscription(desk)).maxDeliveryCount, 5);
    await admin.createSubscription(name, "all");
    const found = [];
    for await (const one of admin.listSubscriptions(name)) found.push(one.subscriptionName);
    assert.deepEqual(found, ["all", "desk"]);
    await admin.deleteSubscription(name, "all");
    assert.equal((await admin.getTopicRuntimeProperties(name)).subscriptionCount, 1);
  },

  async "a subscription may bring its first rule"({ admin, name }) {
    await admin.createTopic(name);
    await admin.createSubscription(name, "desk", {
      defaultRuleOptions: { name: "first", filter: { subject: "urgent" }, action: { sqlExpression: "SET a = 1" } },
    });
    assert.deepEqual(await names(admin.listRules(name, "desk")), ["first"]);
    const rule = await admin.getRule(name, "desk", "first");
    assert.deepEqual([rule.filter.subject, rule.action.sqlExpression], ["urgent", "SET a = 1"]);
  },

  async "rules of every kind come back as they were"({ admin, name }) {
    await admin.createTopic(name);
    await admin.createSubscription(name, "desk");
    const values = { text: "x", number: 1.5, whole: 7, yes: true, no: false, moment: new Date(1_600_000_000_000) };
    const filters = {
      sql: { sqlExpression: "a = @text AND b < @number", sqlParameters: { "@text": "x", "@number": 1.5 } },
      correlation: {
        correlationId: "c",
        subject: "l",
        to: "t",
        replyTo: "r",
        replyToSessionId: "rs",
        sessionId: "s",
        messageId: "m",
        contentType: "ct",
        applicationProperties: values,
      },
    };
    for (const [key, filter] of Object.entries(filters)) {
      await admin.createRule(name, "desk", key, filter, { sqlExpression: "SET a = @p", sqlParameters: { "@p": 2 } });
      const rule = await admin.getRule(name, "desk", key);
      assert.deepEqual(rule.filter, filter);
      assert.deepEqual(rule.action, { sqlExpression: "SET a = @p", sqlParameters: { "@p": 2 } });
    }
    const rule = await admin.getRule(name, "desk", "sql");
    rule.filter = { sqlExpression: "c = 3" };
    assert.equal((await admin.updateRule(name, "desk", rule)).filter.sqlExpression, "c = 3");
    await admin.deleteRule(name, "desk", "$Default");
    assert.deepEqual(await names(admin.listRules(name, "desk")), ["correlation", "sql"]);
    await fails(admin.createRule(name, "desk", "bad", { sqlExpression: "a = =" }), "ServiceError", /line 1, column/);
  },

  async "lists come page by page"({ admin, name }) {
    await admin.createTopic(name);
    const wanted = range(250).map((number) => `s${String(number).padStart(3, "0")}`);
    for (const one of wanted) await admin.createSubscription(name, one);
    const found = [];
    for await (const one of admin.listSubscriptions(name)) found.push(one.subscriptionName);
    assert.deepEqual(found, wanted);
    const sizes = [];
    for await (const page of admin.listSubscriptions(name).byPage({ maxPageSize: 60 })) sizes.push(page.length);
    assert.deepEqual(sizes, [60, 60, 60, 60, 10]);
    const counts = [];
    for await (const one of admin.listSubscriptionsRuntimeProperties(name)) counts.push(one.totalMessageCount);
    assert.deepEqual(counts, wanted.map(() => 0));
  },

  async "counts and times are true"({ admin, name }) {
    const before = Date.now() - 5_000;
    await admin.createQueue(name);
    const client = new ServiceBusClient(connectionString);
    const sender = client.createSender(name);
    await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    await sender.scheduleMessages({ body: 4 }, new Date(Date.now() + 300_000));
    const receiver = client.createReceiver(name);
    const [first] = await receiver.receiveMessages(1);
    await receiver.deadLetterMessage(first);
    await client.close();
    const found = await admin.getQueueRuntimeProperties(name);
    const { activeMessageCount, deadLetterMessageCount, scheduledMessageCount, totalMessageCount } = found;
    assert.deepEqual(
      { activeMessageCount, deadLetterMessageCount, scheduledMessageCount, totalMessageCount },
      { activeMessageCount: 2, deadLetterMessageCount: 1, scheduledMessageCount: 1, totalMessageCount: 4 },
    );
    assert.ok(found.sizeInBytes > 0);
    assert.ok(found.createdAt.getTime() > before && found.accessedAt.getTime() > before);
  },

  async "what is refused is refused with the right error"({ admin, name }) {
    const queue = await admin.createQueue(name);
    await fails(admin.createQueue(name), "MessageEntityAlreadyExistsError");
    await fails(admin.createTopic(name.toUpperCase()), "MessageEntityAlreadyExistsError");
    await fails(admin.getQueue("nobody"), "MessageEntityNotFoundError");
    await fails(admin.deleteQueue("nobody"), "MessageEntityNotFoundError");
    await fails(admin.updateQueue({ ...queue, name: "nobody" }), "MessageEntityNotFoundError");
    await fails(admin.updateQueue({ ...queue, requiresSession: true }), "ServiceError", /RequiresSession/);
    await fails(admin.updateQueue({ ...queue, lockDuration: "PT6M" }), "ServiceError", /LockDuration is PT6M/);
    await fails(admin.createQueue(`${name}-x`, { maxMessageSizeInKilobytes: 1024 }), "ServiceError", /Premium/);
    const wrong = connectionString.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=wrong");
    await fails(new ServiceBusAdministrationClient(wrong).getQueue(name), "UnauthorizedRequestError", /with this key/);
  },

  async "the namespace tells about itself"({ admin }) {
    const { name, messagingSku, createdAt } = await admin.getNamespaceProperties();
    assert.deepEqual([name, messagingSku], ["local", "Standard"]);
    assert.ok(Math.abs(createdAt - Date.now()) < 600_000);
  },
};

const plain = (properties) => ({ ...properties });

async function names(list) {
  const found = [];
  for await (const one of list) found.push(one.name);
  return found;
}

async function fails(promise, code, message = /./) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code, `${error.name} ${error.code}: ${error.message}`);
    assert.match(error.message, message);
    return true;
  });
}

await runAll(scenarios, (name) => ({ admin: new ServiceBusAdministrationClient(connectionString), name }));
