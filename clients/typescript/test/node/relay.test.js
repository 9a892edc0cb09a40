// Calls through a relay: the bytes are those of the vectors that all clients share, and the service is the real one.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, afterEach, before, beforeEach, mock, test } from "node:test";
import { ApiError, Client, DroppedError, RefusedError, UnknownTypeError } from "../../dist/index.js";
import { KeysDifferError, relay } from "../../dist/relay.js";
import { padded, readResponse } from "../../build/binary_http.js";
import { sealedTo } from "../../build/relay.js";
import { RELAY_ADDRESS, recorded, relaying, service } from "../service.js";

const { relay: vector } = JSON.parse(readFileSync(new URL("../../../vectors.json", import.meta.url), "utf8"));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (found) => Buffer.from(found).toString("hex");
const AT_ONCE = { delay: () => 0 };
const WEEK = 7 * 24 * 3600 * 1000;

let gate, front, between, instead;
before(async () => {
  gate = await service("relayed");
  front = await recorded(gate.url);
  between = await relaying(front.url, { instead: (seen) => instead?.(seen) });
});
after(async () => {
  await Promise.all([front.stop(), between.stop()]);
  await gate.stop();
});
beforeEach(async () => {
  instead = undefined;
  front.requests.length = between.requests.length = 0;
  mock.timers.enable({ apis: ["Date"], now: (await gate.tell("now")).now });
});
afterEach(() => mock.timers.reset());

const client = (options = {}) => new Client(front.url, { client: "me", onDrop: () => {}, through: relay(between.url, AT_ONCE), ...options });
const outer = (status, body = "{}") => ({ status, body });
const paths = ({ requests }) => requests.map(({ path }) => path);

test("a request, its capsule and the answer are those of the vector", async () => {
  const { method, authority, path, fields, body } = vector.request;
  const message = padded({ method, authority, path, fields, content: new TextEncoder().encode(body) });
  assert.equal(hex(message), vector.message.padEnd(2 * vector.messageBytes, "0"));
  const [privateKey, publicKey] = await Promise.all([
    crypto.subtle.importKey("pkcs8", bytes(`302e020100300506032b656e04220420${vector.ephemeralPrivateKey}`), "X25519", false, ["deriveBits"]),
    crypto.subtle.importKey("raw", bytes(vector.sealed).slice(7, 39), "X25519", true, []),
  ]);
  const { sealed, open } = await sealedTo(bytes(vector.config), message, { privateKey, publicKey });
  assert.equal(hex(sealed), vector.sealed);
  const found = readResponse(await open(bytes(vector.sealedAnswer)));
  assert.deepEqual({ ...found, content: new TextDecoder().decode(found.content) }, { status: 200, fields: vector.answer.fields, content: vector.answer.body });
  assert.equal(await open(bytes(vector.sealedAnswer.replace(/..$/, "00"))), undefined);
});

test("lengths and refused answers are those of the vectors", () => {
  for (const { authority, path, bodyBytes, messageBytes } of vector.lengths) {
    const message = padded({ method: "POST", authority, path, fields: [], content: new Uint8Array(bodyBytes).fill(120) });
    assert.equal(message.length, messageBytes);
  }
  assert.ok(vector.refusedAnswers.length > 5);
  for (const { why, hex } of vector.refusedAnswers) assert.equal(readResponse(bytes(hex)), undefined, why);
});

test("a crowd joins through a relay; the service sees the relay alone, but for its key", async () => {
  const crowd = (await client().type("terms")).surelyTrueFrom;
  const caller = client();
  await caller.joinMany(Array.from({ length: crowd }, (_, n) => ({ type: "terms", value: "shared", client: `client-${n}` })));
  await gate.tell("step");
  mock.timers.setTime((await gate.tell("now")).now);
  assert.deepEqual(await caller.isShared("terms", ["shared", "rare"]), new Set(["shared"]));
  const direct = front.requests.filter(({ from }) => !from.endsWith(RELAY_ADDRESS));
  assert.deepEqual(new Set(paths({ requests: direct })), new Set(["/v1/proxy/keys"]));
  const lengths = between.requests.filter(({ path }) => path === "/v1/gateway").map(({ raw }) => raw.length);
  assert.ok(lengths.length > crowd && new Set(lengths).size === 1, "all joins and queries have one length");
});

test("with a key each join is still sent by itself, and the key travels inside", async () => {
  const { key } = await gate.tell("key");
  await client({ auth: `Bearer ${key}` }).joinMany([1, 2, 3].map((n) => ({ type: "terms", value: `value ${n}` })));
  assert.equal(paths(between).filter((path) => path === "/v1/gateway").length, 4); // and the types
  for (const { headers } of front.requests) assert.equal(headers.authorization, undefined);
});

test("a join waits a part of what is left of its step", async () => {
  const asked = [];
  const through = relay(between.url, { delay: (left) => (asked.push(left), 0) });
  await client({ through }).join("terms", "waiting");
  const { period } = await client().type("terms");
  assert.deepEqual(asked, [period * 1000 - (Date.now() % (period * 1000))]);
  mock.method(crypto, "getRandomValues", (numbers) => numbers.fill(2 ** 30));
  assert.equal(relay(between.url).delay(4000), 1000);
  mock.restoreAll();
  assert.throws(() => relay(between.url, { delya: 1 }), /did you mean delay\?/);
  assert.throws(() => relay("relay.example"), /is not an address/);
});

test("two keys stop the client before it sends anything", async () => {
  instead = ({ path }) => (path.endsWith("keys") ? outer(200, bytes(vector.config)) : undefined);
  await assert.rejects(client().join("terms", "a"), KeysDifferError);
  assert.deepEqual(new Set(paths(between)), new Set(["/v1/proxy/keys"]));
  assert.ok(!paths(front).includes("/v1/gateway"));
});

test("what is no key stops the client", async () => {
  const fake = await relaying("http://127.0.0.1:1", { instead: () => outer(200, "a key") });
  await assert.rejects(new Client(fake.url, { through: relay(fake.url) }).types(), /is no key/);
  await fake.stop();
});

test("a new key is fetched when the old one is over or does not open any more", async () => {
  const caller = client();
  await caller.types();
  assert.equal(paths(between).filter((path) => path.endsWith("keys")).length, 1);
  mock.timers.setTime(Date.now() + WEEK);
  await caller.isShared("terms", ["a"]);
  assert.equal(paths(between).filter((path) => path.endsWith("keys")).length, 2);
  let refusals = 1;
  instead = ({ path }) => (path === "/v1/gateway" && refusals-- > 0 ? outer(400) : undefined);
  await caller.isShared("terms", ["b"]);
  assert.equal(paths(between).filter((path) => path.endsWith("keys")).length, 3);
});

test("a busy relay is asked again, and one that refuses is not", async () => {
  mock.method(Math, "random", () => 0);
  const caller = client();
  await caller.types();
  const busy = [429, 503];
  instead = ({ path }) => (path === "/v1/gateway" && busy.length ? outer(busy.pop()) : undefined);
  await caller.isShared("terms", ["a"]);
  for (const status of [403, 404, 413]) {
    instead = () => outer(status);
    const asked = between.requests.length;
    await assert.rejects(caller.isShared("terms", [`${status}`]), (thrown) => thrown instanceof RefusedError && thrown.status === status);
    assert.equal(between.requests.length, asked + 1);
  }
  instead = ({ path }) => (path === "/v1/gateway" ? outer(400) : undefined);
  await assert.rejects(caller.isShared("terms", ["c"]), /POST \/v1\/gateway: 400, the relay/);
  mock.restoreAll();
});

test("a relay that changes bytes is noticed", async () => {
  const caller = client();
  await caller.types();
  for (const body of ["", "x".repeat(500)]) {
    instead = () => outer(200, body);
    await assert.rejects(caller.isShared("terms", ["a"]), (thrown) => thrown instanceof ApiError && /changes no bytes/.test(thrown.message));
  }
});

test("errors of the service are those without a relay", async () => {
  await assert.rejects(client().join("term", "a"), (thrown) => thrown instanceof UnknownTypeError && /did you mean terms/.test(thrown.message));
  await assert.rejects(client({ client: "x".repeat(300) }).join("terms", "a"), (thrown) => thrown instanceof RefusedError && thrown.status === 400);
});

test("a join of a clock that is wrong by hours is refused, and told", async () => {
  mock.timers.setTime(Date.now() + 3 * 3600 * 1000);
  const told = [];
  const caller = client({ onDrop: (error) => told.push(error) });
  await assert.rejects(caller.join("terms", "late"), /current step, and check the clock/);
  assert.ok(told[0] instanceof RefusedError && !(told[0] instanceof DroppedError));
});
