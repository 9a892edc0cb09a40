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

let gate, front, between, instead, frontInstead;
before(async () => {
  gate = await service("relayed");
  front = await recorded(gate.url, (seen) => frontInstead?.(seen));
  between = await relaying(front.url, { instead: (seen) => instead?.(seen) });
});
after(async () => {
  await Promise.all([front.stop(), between.stop()]);
  await gate.stop();
});
beforeEach(async () => {
  instead = frontInstead = undefined;
  front.requests.length = between.requests.length = 0;
  mock.timers.enable({ apis: ["Date"], now: (await gate.tell("now")).now });
});
afterEach(() => mock.timers.reset());

const client = (options = {}) => new Client(front.url, { client: "me", onDrop: () => {}, through: relay(between.url, AT_ONCE), ...options });
const outer = (status, body = "{}") => ({ status, body });
const paths = ({ requests }) => requests.map(({ path }) => path);
const isCall = ({ path }) => path === "/v1/gateway";
const isKeys = ({ path }) => path === "/v1/proxy/keys";
const isDirect = ({ from }) => !from.endsWith(RELAY_ADDRESS);

/** Let the service show its key as one that is over at once. */
async function overAtOnce() {
  const body = new Uint8Array(await (await fetch(`${gate.url}/v1/proxy/keys`)).arrayBuffer());
  frontInstead = (seen) => (isKeys(seen) && isDirect(seen) ? { headers: { "cache-control": "max-age=0" }, body } : undefined);
}

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

test("a join gets its key before it waits, and then sends one request, to the relay", async () => {
  await overAtOnce();
  const sent = [];
  instead = ({ path }) => void sent.push(`relay ${path}`);
  const shown = frontInstead;
  frontInstead = (seen) => (isDirect(seen) && sent.push(`service ${seen.path}`), shown(seen));
  const caller = client({ through: relay(between.url, { delay: () => 12_345 }) });
  await caller.types();
  sent.length = 0;
  const timer = globalThis.setTimeout;
  mock.method(globalThis, "setTimeout", (done, milliseconds) => timer(done, milliseconds === 12_345 ? sent.push("wait") && 0 : milliseconds));
  await caller.join("terms", "waiting");
  mock.restoreAll();
  assert.deepEqual(sent, ["relay /v1/proxy/keys", "service /v1/proxy/keys", "wait", "relay /v1/gateway"]);
});

test("a join whose key is refused is not sent again, and the key is new before the next one waits", async () => {
  let wait = 500;
  let drawn;
  const waits = new Promise((done) => (drawn = done));
  const caller = client({ through: relay(between.url, { delay: () => (drawn(), wait) }) });
  await caller.types();
  const fetched = () => front.requests.filter(isKeys).length;
  const before = fetched();
  let refusals = 1;
  instead = (seen) => (isCall(seen) && refusals-- > 0 ? outer(400) : undefined);
  const other = caller.join("terms", "waits meanwhile");
  await waits;
  wait = 0;
  await assert.rejects(caller.join("terms", "refused"), (thrown) => thrown instanceof RefusedError && thrown.status === 400);
  await other;
  assert.equal(fetched(), before, "no join fetches a key when it is sent");
  await caller.join("terms", "next");
  assert.equal(fetched(), before + 2);
});

test("a failed join waits at random again, up to what is left of its time", async () => {
  const asked = [];
  const caller = client({ through: relay(between.url, { delay: (most) => (asked.push(most), 0) }) });
  const step = (await caller.type("terms")).period * 1000;
  mock.method(crypto, "getRandomValues", (numbers) => numbers.fill(0));
  mock.method(Math, "random", () => assert.fail("it would show which joins have one sender"));
  const later = (milliseconds) => mock.timers.setTime(Date.now() + milliseconds);
  const calls = () => between.requests.filter(isCall).length;
  const before = calls();
  mock.method(globalThis, "fetch", () => Promise.reject(new TypeError("no answer")), { times: 1 });
  let busy = 2;
  instead = () => (busy-- > 0 ? (later(1000), { ...outer(503), headers: { "retry-after": "3000" } }) : undefined);
  await caller.join("terms", "a");
  assert.deepEqual(asked.splice(0), [step, step, step - 1000, step - 2000]);
  assert.equal(calls(), before + 3);
  instead = () => (later(step / 2), outer(503));
  await assert.rejects(caller.join("terms", "b"), DroppedError);
  assert.deepEqual(asked, [step, step / 2, 0]);
  assert.equal(calls(), before + 5);
  mock.restoreAll();
});

test("a join waits a random part of a whole step", async () => {
  const asked = [];
  const through = relay(between.url, { delay: (most) => (asked.push(most), 0) });
  await client({ through }).join("terms", "waiting");
  const { period } = await client().type("terms");
  assert.deepEqual(asked, [period * 1000]);
  mock.method(crypto, "getRandomValues", (numbers) => numbers.fill(2 ** 30));
  assert.equal(relay(between.url).delay(4000), 1000);
  mock.restoreAll();
  assert.throws(() => relay(between.url, { delya: 1 }), /did you mean delay\?/);
  assert.throws(() => relay("relay.example"), /is not an address/);
});

test("joins that need a key at one time ask for it once", async () => {
  await overAtOnce();
  const caller = client();
  await caller.types();
  instead = (seen) => (isKeys(seen) ? new Promise((done) => setTimeout(done, 100)) : undefined);
  const before = front.requests.filter(isKeys).length;
  await Promise.all(Array.from({ length: 5 }, (_, n) => caller.join("terms", `value ${n}`)));
  assert.equal(front.requests.filter(isKeys).length, before + 2); // by the relay, and directly
});

test("a key of last week in a cache is no second key", async () => {
  const fetched = globalThis.fetch;
  mock.method(globalThis, "fetch", (url, init) =>
    url === `${between.url}/v1/proxy/keys` && init.cache === "default" ? new Response(bytes(vector.config)) : fetched(url, init),
  );
  await client().join("terms", "on Monday");
  mock.restoreAll();
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
  const past = front.requests.filter(isKeys).map(({ headers }) => headers["cache-control"] === "no-cache");
  assert.deepEqual(past.slice(-2), [false, true], "not from the cache of a browser");
});

test("a busy relay is asked again, and one that refuses is not", async () => {
  mock.method(Math, "random", () => 0);
  const caller = client();
  await caller.types();
  const busy = [429, 503];
  instead = ({ path }) => (path === "/v1/gateway" && busy.length ? outer(busy.pop()) : undefined);
  await caller.isShared("terms", ["a"]);
  const busyKeys = [429, 503];
  instead = (seen) => (isKeys(seen) && busyKeys.length ? outer(busyKeys.pop()) : undefined);
  mock.timers.setTime(Date.now() + WEEK);
  await caller.isShared("terms", ["b"]);
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

test("a join whose key is not to be had yet gets it before it waits", async () => {
  mock.method(Math, "random", () => 0);
  await overAtOnce();
  const asked = [];
  const caller = client({ through: relay(between.url, { delay: (most) => (asked.push(most), 0) }) });
  const { period } = await caller.type("terms");
  const busy = [429, 503];
  instead = (seen) => (isKeys(seen) && busy.length ? outer(busy.pop()) : undefined);
  await caller.join("terms", "a");
  assert.deepEqual(busy, []);
  assert.deepEqual(asked, [period * 1000]);
  instead = (seen) => (isKeys(seen) ? (mock.timers.setTime(Date.now() + period * 1000), outer(503)) : undefined);
  await assert.rejects(caller.join("terms", "b"), DroppedError);
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
