// What the client sends, when it repeats it, and what it keeps, against a server that answers as a test says.
import assert from "node:assert/strict";
import { afterEach, beforeEach, mock, test } from "node:test";
import { Client, DroppedError, NoAnswerError, RefusedError, UnknownTypeError, valueId } from "../../dist/index.js";
import { scripted } from "../service.js";

let server;
let answer;
const types = (period = 3600) => ({ body: { types: [{ type: "terms", period }, { type: "urls", period }] } });
const error = (code, message = "no") => ({ error: { code, status: "X", message, details: [] } });
const sent = (path) => server.requests.filter((request) => request.path.includes(path));

beforeEach(async () => {
  answer = () => ({});
  server = await scripted((request, number) => (request.path === "/v1/types" ? types() : answer(request, number)));
  mock.method(Math, "random", () => 0); // no wait beyond Retry-After
});
afterEach(async () => {
  mock.restoreAll();
  await server.stop();
});

const shared = (...hashes) => ({
  headers: { "cache-control": "max-age=100" },
  body: { kAnonymousSets: [{ type: "terms", hashes }], step: 1, nextUpdate: "2027-01-15T10:30:00Z" },
});

test("a join names its set and its client, and no page needs to ask before it", async () => {
  await new Client(server.url, { client: "me" }).join("terms", "a value");
  const [{ method, path, headers, body }] = sent(":join");
  assert.equal(`${method} ${path}`, `POST /v1/types/terms/sets/${await valueId("a value")}:join`);
  assert.equal(headers["content-type"], "text/plain;charset=UTF-8");
  assert.deepEqual(JSON.parse(body), { client: "me" });
});

test("a number is a short client identifier, and the client of a join goes first", async () => {
  const client = new Client(server.url, { client: "me" });
  await client.join("terms", "a value", 7);
  assert.deepEqual(JSON.parse(sent(":join")[0].body), { shortClientIdentifier: 7 });
});

test("a key goes with JSON, and is asked for again at every attempt", async () => {
  let keys = 0;
  answer = (_, number) => (number === 3 ? { status: 503, headers: { "retry-after": "0" }, body: error(503) } : {});
  await new Client(server.url, { client: "me", auth: () => `Bearer ${++keys}` }).join("terms", "a value");
  assert.deepEqual(server.requests.map(({ headers }) => headers.authorization), ["Bearer 1", "Bearer 2"]);
  assert.equal(server.requests[1].headers["content-type"], "application/json");
});

test("a repeated join is not sent again within a step", async () => {
  const client = new Client(server.url, { client: "me" });
  await Promise.all([client.join("terms", "a"), client.join("terms", "a"), client.join("terms", "a", "you")]);
  await client.join("terms", "a");
  await client.join("urls", "a");
  assert.equal(sent(":join").length, 3);
});

test("a call that the service cannot take is repeated with the same bytes", async () => {
  answer = (_, number) => (number < 5 ? { status: number === 2 ? 503 : 429, headers: { "retry-after": "0" } } : {});
  await new Client(server.url, { client: "me" }).join("terms", "a value");
  const bodies = sent(":join").map(({ body }) => body);
  assert.equal(bodies.length, 4);
  assert.equal(new Set(bodies).size, 1);
});

test("a refused join is not repeated, but counted and told", async () => {
  answer = () => ({ status: 400, body: error(400, "client: too long") });
  const told = [];
  const client = new Client(server.url, { client: "me", onDrop: (...one) => told.push(one) });
  await assert.rejects(client.join("terms", "a"), (thrown) => {
    assert.ok(thrown instanceof RefusedError);
    assert.equal(thrown.status, 400);
    assert.match(thrown.message, /client: too long/);
    assert.doesNotMatch(thrown.message, new RegExp(String(sent(":join")[0].path.split("/").at(-1))));
    return true;
  });
  assert.equal(client.dropped, 1);
  assert.deepEqual(told[0][1], { type: "terms", value: "a" });
});

test("a join that nobody awaits never becomes an unhandled rejection", async () => {
  answer = () => ({ status: 400, body: error(400) });
  const dropped = new Promise((resolve) => {
    void new Client(server.url, { client: "me", onDrop: resolve }).join("terms", "a");
  });
  assert.ok((await dropped) instanceof RefusedError); // node ends the test process at an unhandled one
});

test("an onDrop that throws hides neither the loss nor its reason", async () => {
  answer = () => ({ status: 400, body: error(400) });
  const warned = mock.method(console, "warn", () => {});
  const client = new Client(server.url, { client: "me", onDrop: () => { throw new TypeError("mine"); } });
  await assert.rejects(client.join("terms", "a"), RefusedError);
  assert.equal(client.dropped, 1);
  assert.equal(warned.mock.calls[0].arguments[1].message, "mine");
});

test("each join of a batch that was not accepted is counted and told", async () => {
  const refused = error(400, "client: too long");
  answer = () => ({ body: { results: [{}, refused, {}, refused] } });
  const told = [];
  const client = new Client(server.url, { auth: "Bearer key", onDrop: (thrown, join) => told.push(`${join.client}: ${thrown.status}`) });
  const joins = ["a", "b", "c", "d"].map((name) => ({ type: "terms", value: "a", client: name }));
  await assert.rejects(client.joinMany(joins), RefusedError);
  assert.equal(client.dropped, 2);
  assert.deepEqual(told, ["b: 400", "d: 400"]);
});

for (const status of [301, 302, 303, 307, 308]) {
  test(`a redirect with ${status} is not followed: no other host gets a key, a client or a value`, async (context) => {
    const other = await scripted(() => types(1));
    context.after(other.stop);
    const moved = ({ path }) => ({ status, headers: { location: other.url + path }, body: "" });
    const client = new Client(server.url, { client: "me", auth: "Bearer key", timeout: 20, onDrop: () => {} });
    answer = moved;
    await assert.rejects(client.isShared("terms", ["a"]), NoAnswerError);
    await assert.rejects(client.released("terms"), NoAnswerError);
    const early = await scripted(moved);
    context.after(early.stop);
    await assert.rejects(new Client(early.url, { auth: "Bearer key", timeout: 20 }).types(), NoAnswerError);
    const short = await scripted((request) => (request.path === "/v1/types" ? types(0.02) : moved(request)));
    context.after(short.stop);
    for (const auth of [{}, { auth: "Bearer key" }]) {
      const joining = new Client(short.url, { client: "me", onDrop: () => {}, ...auth });
      await assert.rejects(joining.join("terms", "a"), DroppedError);
      await assert.rejects(joining.joinMany([{ type: "terms", value: "b" }]), (thrown) => thrown instanceof DroppedError || thrown instanceof NoAnswerError);
    }
    assert.ok(short.requests.length > 4);
    assert.deepEqual(other.requests, []);
  });
}

test("without onDrop the first lost join is in the console", async () => {
  answer = () => ({ status: 400, body: error(400) });
  const warned = mock.method(console, "warn", () => {});
  const client = new Client(server.url, { client: "me" });
  await Promise.allSettled([client.join("terms", "a"), client.join("terms", "b")]);
  assert.equal(warned.mock.callCount(), 1);
  assert.equal(client.dropped, 2);
});

test("a join is dropped if it would be sent after its step", async () => {
  answer = () => ({ status: 503, headers: { "retry-after": "3600" }, body: error(503) });
  const client = new Client(server.url, { client: "me", onDrop: () => {} });
  await assert.rejects(client.join("terms", "a"), DroppedError);
  assert.equal(client.dropped, 1);
  answer = () => ({});
  await client.join("terms", "a"); // it may be joined again
  assert.equal(sent(":join").length, 2);
});

test("at most 60 KiB of joins are in flight, and the others follow", async () => {
  let flying = 0;
  let most = 0;
  let full;
  const filled = new Promise((resolve) => (full = resolve));
  let release;
  const released = new Promise((resolve) => (release = resolve));
  answer = async ({ body }) => {
    most = Math.max(most, (flying += body.length));
    if (flying > 59 * 1024) full();
    await released;
    flying -= body.length;
    return {};
  };
  const client = new Client(server.url);
  const joins = Array.from({ length: 400 }, (_, n) => ({ type: "terms", value: "a", client: `${n}`.padEnd(256, "x") }));
  const done = client.joinMany(joins);
  await filled;
  release();
  await done;
  assert.equal(sent(":join").length, 400);
  assert.ok(most <= 60 * 1024, `${most} bytes`);
});

test("with a key many joins are one call, and only those that were not logged are repeated", async () => {
  answer = ({ body }) => {
    const { joins } = JSON.parse(body);
    const results = joins.map(({ client }) => (client === "2" && joins.length > 1 ? error(503) : {}));
    return { headers: { "retry-after": "0" }, body: { results } };
  };
  const client = new Client(server.url, { auth: "Bearer key" });
  await client.joinMany(["1", "2", "3"].map((who) => ({ type: "terms", value: "a", client: who })));
  const calls = sent("batchJoin").map(({ body }) => JSON.parse(body).joins.map((join) => join.client));
  assert.deepEqual(calls, [["1", "2", "3"], ["2"]]);
});

test("what a batch has logged is not told as lost if the rest fails", async () => {
  answer = (_, number) => (number === 2 ? { body: { results: [{}, error(503)] } } : { status: 400, body: error(400) });
  const told = [];
  const client = new Client(server.url, { auth: "Bearer key", onDrop: (thrown, join) => told.push([thrown.status, join.client]) });
  await assert.rejects(client.joinMany(["1", "2"].map((who) => ({ type: "terms", value: "a", client: who }))), RefusedError);
  assert.deepEqual(told, [[400, "2"]]);
  assert.equal(client.dropped, 1);
});

test("a refused join of a batch is told by itself, and the others are still repeated", async () => {
  answer = ({ body }, number) => {
    const { joins } = JSON.parse(body);
    const results = joins.map(({ client }) => ({ 1: error(400, "client: wrong"), 2: number < 4 ? error(503) : {} })[client] ?? {});
    return { headers: { "retry-after": number === 2 ? "0" : "9999" }, body: { results } };
  };
  const told = [];
  const client = new Client(server.url, { auth: "Bearer key", onDrop: (thrown, join) => told.push([thrown.name, join.client]) });
  await assert.rejects(client.joinMany(["1", "2", "3"].map((who) => ({ type: "terms", value: "a", client: who }))), /wrong/);
  assert.equal(client.dropped, 2);
  assert.deepEqual(told, [["RefusedError", "1"], ["DroppedError", "2"]]);
});

test("a batch is split at 500 joins and at 60 KiB", async () => {
  answer = ({ body }) => ({ body: { results: JSON.parse(body).joins.map(() => ({})) } });
  const client = new Client(server.url, { auth: "Bearer key" });
  await client.joinMany(Array.from({ length: 501 }, (_, n) => ({ type: "terms", value: "a", client: n })));
  await client.joinMany(Array.from({ length: 300 }, (_, n) => ({ type: "terms", value: "a", client: `${n}`.padEnd(256) })));
  const bodies = sent("batchJoin").map(({ body }) => body);
  const sizes = bodies.map((body) => JSON.parse(body).joins.length).sort((one, other) => other - one);
  assert.equal(sizes.reduce((sum, size) => sum + size), 801);
  assert.equal(sizes[0], 500);
  assert.ok(bodies.every((body) => body.length <= 60 * 1024));
});

test("the values that the crowd shares are found, and answers are kept until the next update", async () => {
  const id = String(await valueId("known"));
  answer = () => shared(id);
  const client = new Client(server.url);
  assert.deepEqual(await client.isShared("terms", ["known", "rare", "known"]), new Set(["known"]));
  assert.deepEqual(await client.isShared("terms", ["rare", "known"]), new Set(["known"]));
  assert.equal(sent(":query").length, 1);
  assert.equal(client.known("terms", "known"), true);
  assert.equal(client.known("terms", "rare"), false);
  assert.equal(client.known("terms", "new"), undefined);
  mock.timers.enable({ apis: ["Date"], now: Date.now() + 101_000 });
  assert.equal(client.known("terms", "known"), undefined);
  mock.timers.reset();
  mock.timers.enable({ apis: ["Date"], now: Date.now() - 1_000_000 });
  assert.equal(client.known("terms", "known"), undefined);
  mock.timers.reset();
});

test("an answer that may not be kept is asked for again", async () => {
  answer = () => ({ ...shared(), headers: {} });
  const client = new Client(server.url);
  await client.isShared("terms", ["a"]);
  await client.isShared("terms", ["a"]);
  assert.equal(sent(":query").length, 2);
});

test("many values are asked about 100 at a time", async () => {
  answer = () => shared();
  await new Client(server.url).isShared("terms", Array.from({ length: 201 }, (_, n) => `value ${n}`));
  const counts = sent(":query").map(({ body }) => JSON.parse(body).setsForType[0].hashes.length);
  assert.deepEqual(counts, [100, 100, 1]);
});

test("a type that the service does not have is an error with the nearest name, and nothing is sent", async () => {
  const client = new Client(server.url, { client: "me", onDrop: () => {} });
  for (const call of [client.join("term", "a"), client.isShared("trems", ["a"]), client.joinMany([{ type: "termz", value: "a" }])]) {
    await assert.rejects(call, (thrown) => thrown instanceof UnknownTypeError && /did you mean terms\?/.test(thrown.message));
  }
  await assert.rejects(client.isShared("something-else", ["a"]), /there is terms, urls/);
  assert.equal(server.requests.length, 1);
});

test("an answer for another type is an error, and not false", async () => {
  answer = () => ({ body: { kAnonymousSets: [{ type: "urls", hashes: [] }], step: 1, nextUpdate: "" } });
  await assert.rejects(new Client(server.url).isShared("terms", ["a"]), /form of this API/);
});

test("sharedOr answers at once, joins, and knows more the next time", async () => {
  const id = String(await valueId("known"));
  let asked;
  const looked = new Promise((resolve) => (asked = resolve));
  answer = ({ path }) => (path.includes(":query") ? (asked(), shared(id)) : {});
  const client = new Client(server.url, { client: "me" });
  assert.equal(client.sharedOr("terms", "known", "other"), "other");
  assert.equal(client.sharedOr("terms", "rare", "other"), "other");
  await looked;
  await client.isShared("terms", ["known", "rare"]);
  assert.equal(client.sharedOr("terms", "known", "other"), "known");
  assert.equal(client.sharedOr("terms", "rare", "other"), "other");
  await client.join("terms", "rare");
  assert.equal(sent(":join").length, 2);
});

test("sharedOr asks about a value that comes while others are asked about", async () => {
  const client = new Client(server.url, { client: "me" });
  answer = ({ path }) => {
    if (!path.includes(":query")) return {};
    if (sent(":query").length === 1) client.sharedOr("terms", "second", "other");
    return shared();
  };
  client.sharedOr("terms", "first", "other");
  for (let n = 0; n < 200 && client.known("terms", "second") === undefined; n++) await new Promise((done) => setTimeout(done, 5));
  assert.equal(client.known("terms", "second"), false);
  assert.equal(sent(":query").length, 2);
});

test("through a relay sharedOr asks about each value by itself", async () => {
  answer = ({ path }) => (path.includes(":query") ? shared() : {});
  const through = { prepare: async () => new Response(), delay: () => 0, send: (service, { path }, init) => fetch(service + path, init) };
  const client = new Client(server.url, { client: "me", through });
  const values = ["one", "two", "three"];
  for (const value of values) client.sharedOr("terms", value, "other");
  while (values.some((value) => client.known("terms", value) === undefined)) await new Promise((done) => setTimeout(done, 5));
  const asked = sent(":query").map(({ body }) => JSON.parse(body).setsForType[0].hashes);
  assert.deepEqual(asked.map((ids) => ids.length), [1, 1, 1]);
  assert.equal(new Set(asked.flat()).size, 3);
  await client.isShared("terms", ["four", "five"]);
  assert.equal(JSON.parse(sent(":query").at(-1).body).setsForType[0].hashes.length, 2);
});

test("nobody answers: one deadline for all attempts", async () => {
  const url = server.url;
  await server.stop();
  const client = new Client(url, { timeout: 20 });
  await assert.rejects(client.isShared("terms", ["a"]), (thrown) => thrown instanceof NoAnswerError && /CORS/.test(thrown.message));
});

test("wrong arguments say what to change", async () => {
  assert.throws(() => new Client("kanon.example"), /https:\/\/host/);
  assert.throws(() => new Client("https://kanon.example?x"), /https:\/\/host/);
  assert.throws(() => new Client(server.url, { clinet: "me" }), /did you mean client\?/);
  await assert.rejects(new Client(server.url, { onDrop: () => {} }).join("terms", "a"), /who joins/);
  await assert.rejects(new Client(server.url).isShared("terms", "a"), /brackets/);
});
