// Reports: the bytes of docs/reference/wire.md, the budget of a window, and what the service counts.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, before, mock, test } from "node:test";
import { bucketOf } from "../../dist/index.js";
import { Reports } from "../../dist/reports.js";
import { seal } from "../../build/sealing.js";
import { encode } from "../../build/payload.js";
import { scripted, service } from "../service.js";

const { report } = JSON.parse(readFileSync(new URL("../../../../docs/reference/vectors.json", import.meta.url), "utf8"));
const KEYS = { headers: { "cache-control": "max-age=600" }, body: report.publicKeys };
const ORIGIN = "https://report.example";
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));

let stack;
before(async () => (stack = await service("reports")));
after(() => stack.stop());

/** Let no window end during a test. */
function frozen(context) {
  context.mock.timers.enable({ apis: ["Date"], now: Date.now() });
}

/** A collector that answers reports as a test says. */
async function collector(answer = () => ({})) {
  let reports = 0;
  const server = await scripted((request) => (request.method === "GET" ? KEYS : answer(++reports)));
  return { ...server, bodies: () => server.requests.filter(({ method }) => method === "POST").map(({ body }) => body) };
}

test("clear text and encryption are those of the vector", async () => {
  const { bucket, value } = report.contribution;
  const cleartext = encode([{ bucket: BigInt(`0x${bucket}`), value }]);
  assert.equal(Buffer.from(cleartext).toString("hex"), report.cleartext);
  const der = Buffer.concat([bytes("302e020100300506032b656e04220420"), bytes(report.ephemeralPrivateKey)]);
  const ephemeral = {
    privateKey: await crypto.subtle.importKey("pkcs8", der, "X25519", false, ["deriveBits"]),
    publicKey: await crypto.subtle.importKey("raw", bytes(report.encapsulatedKey), "X25519", true, []),
  };
  const payload = await seal(cleartext, bytes(report.publicKey), `aggregation_service${report.sharedInfo}`, ephemeral);
  assert.equal(Buffer.from(payload).toString("base64"), report.payload);
});

test("the service opens a report and counts it under the key of its value", async (context) => {
  frozen(context);
  const reports = new Reports(stack.url, { origin: "https://counted.example", window: 60_000 });
  assert.equal(await reports.contribute("a value", 65_536), true);
  assert.equal(await reports.contribute("another value", 1), false); // no budget is left: a null report
  const keys = [];
  for (const value of ["a value", "another value"]) keys.push((await bucketOf(value)).toString(16).padStart(32, "0"));
  const { result, released } = await stack.tell("count", "https://counted.example", ...keys);
  assert.equal(result.return_code, "SUCCESS", result.return_message);
  // The noise has a standard deviation of 1,448: it is above 30,000 with probability e^-29.
  assert.ok(Math.abs(released[keys[0]] - 65_536) < 30_000, JSON.stringify(released));
  assert.ok(Math.abs(released[keys[1]]) < 30_000, JSON.stringify(released));
});

test("every attempt sends the same bytes", async () => {
  mock.method(Math, "random", () => 0);
  const server = await collector((number) => (number < 3 ? { status: 503, headers: { "retry-after": "0" } } : {}));
  await new Reports(server.url, { origin: ORIGIN }).contribute("a", 1);
  assert.equal(server.bodies().length, 3);
  assert.equal(new Set(server.bodies()).size, 1);
  mock.restoreAll();
  await server.stop();
});

test("a report says nothing but its window: null reports have the same length and fields", async (context) => {
  frozen(context);
  const server = await collector();
  const reports = new Reports(server.url, { origin: ORIGIN });
  const fitting = [];
  for (const amount of [65_000, 536, 1, 0]) fitting.push(await reports.contribute(`value ${amount}`, amount));
  assert.deepEqual(fitting, [true, true, false, true]);
  const bodies = server.bodies().map((body) => JSON.parse(body));
  const infos = bodies.map((body) => JSON.parse(body.shared_info));
  assert.equal(new Set(bodies.map((body) => body.aggregation_service_payloads[0].payload.length)).size, 1);
  for (const info of infos) assert.deepEqual(Object.keys(info), Object.keys(JSON.parse(report.sharedInfo)));
  assert.equal(new Set(infos.map((info) => info.report_id)).size, 4);
  assert.ok(infos.every((info) => Number(info.scheduled_report_time) % 600 === 0));
  await server.stop();
});

test("the next window has a budget of its own", async () => {
  const server = await collector();
  mock.timers.enable({ apis: ["Date"], now: 1_795_169_000_000 });
  const reports = new Reports(server.url, { origin: ORIGIN, onDrop: () => {} });
  assert.equal(await reports.contribute("a", 65_536), true);
  assert.equal(await reports.contribute("a", 1), false);
  mock.timers.setTime(1_795_169_400_000);
  assert.equal(await reports.contribute("a", 1), true);
  mock.timers.setTime(1_795_169_000_000);
  await assert.rejects(reports.contribute("a", 1), /clock/);
  mock.timers.reset();
  await server.stop();
});

test("public keys are used for as long as they may be kept", async () => {
  const server = await collector();
  mock.timers.enable({ apis: ["Date"], now: Date.now() });
  const reports = new Reports(server.url, { origin: ORIGIN });
  await reports.contribute("a", 1);
  mock.timers.setTime(Date.now() + 599_000);
  await reports.contribute("a", 1);
  assert.equal(server.requests.filter(({ method }) => method === "GET").length, 1);
  mock.timers.setTime(Date.now() + 1_000);
  await reports.contribute("a", 1);
  assert.equal(server.requests.filter(({ method }) => method === "GET").length, 2);
  mock.timers.reset();
  await server.stop();
});

test("a report that is not accepted is counted and told, also if that throws", async () => {
  const answers = [{ status: 400, body: { error: { code: 400, message: "no", status: "X", details: [] } } }, {}];
  const server = await collector(() => answers.shift());
  const warned = mock.method(console, "warn", () => {});
  const told = [];
  const onDrop = (error) => {
    told.push(error.status);
    throw new TypeError("mine");
  };
  const reports = new Reports(server.url, { origin: ORIGIN, onDrop });
  await assert.rejects(reports.contribute("a", 1), /no/);
  assert.equal(await reports.contribute("a", 1), true);
  assert.deepEqual(told, [400]);
  assert.equal(reports.dropped, 1);
  assert.equal(warned.mock.calls[0].arguments[1].message, "mine");
  mock.restoreAll();
  await server.stop();
});

test("a report does not follow a redirect to another host", async (context) => {
  const other = await scripted(() => KEYS);
  const server = await collector(() => ({ status: 307, headers: { location: `${other.url}/v1/reports` }, body: "" }));
  mock.method(Math, "random", () => 0);
  context.mock.timers.enable({ apis: ["Date"], now: Date.now() });
  const reports = new Reports(server.url, { origin: ORIGIN, onDrop: () => {} });
  const done = reports.contribute("a", 1);
  const lost = assert.rejects(done, /no answer/);
  for (let waited = 0; waited < 5_000 && !server.bodies().length; waited += 5) await new Promise((resolve) => setTimeout(resolve, 5));
  context.mock.timers.setTime(Date.now() + 2 * 86_400_000); // the day is over
  await lost;
  assert.ok(server.bodies().length >= 1);
  assert.deepEqual(other.requests, []);
  mock.restoreAll();
  await Promise.all([server.stop(), other.stop()]);
});

test("a budget that could not be stored once counts, and so does what is stored later", async (context) => {
  frozen(context);
  const server = await collector();
  const rows = new Map();
  let full = true;
  const setItem = (name, value) => {
    if (full) throw new Error("full");
    rows.set(name, value);
  };
  globalThis.localStorage = { getItem: (name) => rows.get(name) ?? null, setItem };
  const reports = new Reports(server.url, { origin: ORIGIN });
  assert.equal(await reports.contribute("a", 20_000), true);
  full = false;
  assert.equal(await reports.contribute("a", 40_000), true);
  assert.equal(await reports.contribute("a", 40_000), false);
  delete globalThis.localStorage;
  await server.stop();
});

test("wrong arguments say what to change, and take no budget", async () => {
  const server = await collector();
  const told = [];
  const reports = new Reports(server.url, { origin: ORIGIN, onDrop: (error) => told.push(error) });
  for (const amount of [-1, 1.5, 2 ** 32, Number.NaN, "1"]) await assert.rejects(reports.contribute("a", amount), /whole number/);
  assert.equal(told.length, 5);
  assert.equal(await reports.contribute("a", 65_536), true);
  assert.throws(() => new Reports(server.url, { origin: "report.example" }), /https:\/\/host/);
  assert.throws(() => new Reports(server.url, { origin: ORIGIN, windows: 1 }), /did you mean window\?/);
  await server.stop();
});
