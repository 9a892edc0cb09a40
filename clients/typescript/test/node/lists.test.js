// Listed types: what joins, lists and private look-ups send, against a server that answers as a test says.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { afterEach, beforeEach, mock, test } from "node:test";
import { ApiError, Client, RefusedError, SetId, UnknownTypeError, valueId } from "../../dist/index.js";
import { scripted } from "../service.js";

const TYPES = { types: [{ type: "terms", period: 3600, listed: true }, { type: "urls", period: 3600, listed: false }] };
const GONE = { status: 404, body: { error: { code: 404, status: "NOT_FOUND", message: "gone", details: [] } } };
const LATER = "2127-01-15T10:30:00Z";
let server, answer;
const paths = () => server.requests.map(({ path }) => path).slice(1);
beforeEach(async () => {
  answer = () => ({});
  server = await scripted((request) => (request.path === "/v1/types" ? { body: TYPES } : answer(request)));
  mock.method(Math, "random", () => 0);
});
afterEach(async () => {
  mock.timers.reset();
  mock.restoreAll();
  await server.stop();
});

// Joins

const quiet = { client: "me", onDrop: () => {} };

test("a join of a listed type sends its value, and one of another type does not", async () => {
  const client = new Client(server.url, quiet);
  await client.join("terms", "caf\u00e9");
  await client.join("terms", new TextEncoder().encode("\ufeffbytes"));
  await client.join("urls", "a value");
  const bodies = server.requests.slice(1).map(({ body }) => JSON.parse(body));
  assert.deepEqual(bodies, [{ client: "me", value: "caf\u00e9" }, { client: "me", value: "\ufeffbytes" }, { client: "me" }]);
});

test("a batch sends the values of listed types", async () => {
  answer = ({ body }) => ({ body: { results: JSON.parse(body).joins.map(() => ({})) } });
  await new Client(server.url, { ...quiet, auth: "Bearer key" }).joinMany([{ type: "terms", value: "a" }, { type: "urls", value: "b" }]);
  const { joins } = JSON.parse(server.requests[1].body);
  assert.deepEqual(joins.map(({ value }) => value), ["a", undefined]);
});

test("a value that a listed type cannot have is refused before anything is sent", async () => {
  const client = new Client(server.url, quiet);
  const join = (value) => client.join("terms", value);
  await assert.rejects(join(await valueId("a")), /give the value itself/);
  await assert.rejects(join(""), /1 to 512 bytes/);
  await assert.rejects(join("\u00e9".repeat(257)), /1 to 512 bytes/);
  await assert.rejects(join(Uint8Array.of(0xff)), /UTF-8/);
  await join("\u00e9".repeat(256));
  assert.equal(paths().length, 1);
});

// The list

const page = (values, next = null, step = 7) => ({ body: { type: "terms", step, nextUpdate: LATER, values, next } });

test("all pages of a list are read", async () => {
  const pages = { "": page([{ value: "a", since: 3 }], "7.aa/"), "?after=7.aa%2F": page([{ value: "b", since: 7 }]) };
  answer = ({ path }) => pages[path.replace("/v1/types/terms/released", "")];
  assert.deepEqual(await new Client(server.url).released("terms"), { values: [{ value: "a", since: 3 }, { value: "b", since: 7 }], step: 7 });
});

test("a list that is replaced meanwhile is read from its beginning, three times at most", async () => {
  let gone = 2;
  answer = ({ path }) => (path.includes("after") ? (gone-- > 0 ? GONE : page([{ value: "b", since: 7 }], null, 8)) : page([{ value: "a", since: 3 }], "x"));
  const client = new Client(server.url);
  assert.deepEqual((await client.released("terms")).values.map(({ value }) => value), ["a", "b"]);
  assert.equal(paths().length, 6);
  gone = 9;
  await assert.rejects(client.released("terms"), (thrown) => thrown instanceof ApiError && /change faster/.test(thrown.message));
  assert.equal(paths().length, 12);
});

test("a list that the service does not have is its error at once, and a message never names a place in it", async () => {
  answer = () => GONE;
  await assert.rejects(new Client(server.url).released("urls"), RefusedError);
  assert.equal(paths().length, 1);
  await assert.rejects(new Client(server.url).released("trems"), UnknownTypeError);
  answer = ({ path }) => (path.includes("after") ? { status: 400, body: {} } : page([], "7.abcdef"));
  await assert.rejects(new Client(server.url).released("terms"), (thrown) => !thrown.message.includes("abcdef"));
});

test("a page of another form is an error", async () => {
  for (const wrong of [{ values: 7, next: null }, { values: [] }]) {
    answer = () => ({ body: wrong });
    await assert.rejects(new Client(server.url).released("terms"), /form of this API/);
  }
});

// Private look-ups

const digest = (text) => createHash("sha256").update(text).digest();
const name = (text) => (digest(text)[0] >> 6).toString(2).padStart(2, "0");

/** Pointer and files of a list with two bits. */
function list(values, step = 7, headers = { "cache-control": "max-age=100" }, nextUpdate = LATER) {
  return ({ path }) => {
    if (path.endsWith("/ranges")) return { headers, body: { type: "terms", step, nextUpdate, prefixBits: 2, count: values.length } };
    const [, at, prefix] = /\/ranges\/(\d+)\/([01]{2})$/.exec(path);
    if (Number(at) !== step) return GONE;
    const hashes = values.filter((value) => name(value) === prefix).map((value) => digest(value).subarray(0, 16)).sort(Buffer.compare);
    const numbers = Buffer.alloc(20);
    numbers.writeBigUInt64BE(BigInt(step));
    numbers.writeUInt32BE(hashes.length, 16);
    return { headers: { "content-type": "application/octet-stream" }, body: Buffer.concat([Buffer.from("KNR1\x02\x05terms"), numbers, ...hashes]) };
  };
}
const values = Array.from({ length: 40 }, (_, n) => `value ${n}`);
const even = values.filter((_, n) => n % 2 === 0);

test("a private look-up reads only the files of its values, and finds what is listed", async () => {
  answer = list(even);
  const looked = values.filter((value) => ["00", "10"].includes(name(value)));
  const client = new Client(server.url);
  assert.deepEqual(await client.isShared("terms", looked, { private: true }), new Set(looked.filter((value) => even.includes(value))));
  assert.deepEqual(paths(), ["/v1/types/terms/ranges", "/v1/types/terms/ranges/7/00", "/v1/types/terms/ranges/7/10"]);
  assert.deepEqual(await client.isShared("terms", values, { private: true }), new Set(even));
  assert.equal(paths().length, 5, "files that were read are not read again");
  assert.ok(server.requests.every(({ method }) => method === "GET"));
});

test("with all, what is sent does not depend on the values", async () => {
  answer = list(even);
  for (const looked of [[], ["value 0"], values]) {
    const client = new Client(server.url);
    const before = paths().length;
    const shared = await client.isShared("terms", looked, { private: "all" });
    assert.deepEqual(shared, new Set(looked.filter((value) => even.includes(value))));
    const files = ["00", "01", "10", "11"].map((prefix) => `/v1/types/terms/ranges/7/${prefix}`);
    assert.deepEqual(server.requests.slice(before + 1).map(({ path }) => path).filter((path) => path !== "/v1/types"), ["/v1/types/terms/ranges", ...files]);
  }
});

test("the newest list is looked for at its update, also if a cache answered late", async () => {
  const now = Date.now();
  mock.timers.enable({ apis: ["Date"], now });
  answer = list(even);
  const client = new Client(server.url);
  const shared = () => client.isShared("terms", ["value 0", "value 1"], { private: true });
  await shared();
  answer = list(["value 1"], 8, { "cache-control": "max-age=100" }, new Date(now + 150_000).toISOString());
  mock.timers.setTime(now + 99_000);
  assert.deepEqual(await shared(), new Set(["value 0"]));
  mock.timers.setTime(now + 101_000);
  assert.deepEqual(await shared(), new Set(["value 1"]));
  answer = list([], 9);
  mock.timers.setTime(now + 151_000);
  assert.deepEqual(await shared(), new Set());
});

test("files that are gone make it begin with the newest list, three times at most", async () => {
  const [old, newest] = [list(even, 7), list(["value 1"], 8)];
  answer = (request) => (paths().length > 2 ? newest(request) : request.path.endsWith("/ranges") ? old(request) : GONE);
  assert.deepEqual(await new Client(server.url).isShared("terms", ["value 0", "value 1"], { private: true }), new Set(["value 1"]));
  const begun = paths().length;
  answer = (request) => (request.path.endsWith("/ranges") ? old(request) : GONE);
  await assert.rejects(new Client(server.url).isShared("terms", ["a"], { private: true }), /change faster/);
  assert.equal(paths().length - begun, 7);
});

test("before the first list nothing is shared, and no file is read", async () => {
  answer = () => ({ body: { type: "terms", step: null, nextUpdate: LATER, prefixBits: null, count: 0 } });
  assert.deepEqual(await new Client(server.url).isShared("terms", ["a"], { private: true }), new Set());
  assert.equal(paths().length, 1);
});

test("what is no range file is an error, and not false; its message does not name the file", async () => {
  const good = list(even);
  answer = (request) => (request.path.endsWith("/ranges") ? good(request) : { body: "<!doctype html>" });
  const unnamed = (thrown) => /form of this API/.test(thrown.message) && !thrown.message.includes(name("value 0"));
  await assert.rejects(new Client(server.url).isShared("terms", ["value 0"], { private: true }), unnamed);
  for (const wrong of [{ step: 7, prefixBits: 17 }, { step: 7, prefixBits: 2.5 }, { step: "7", prefixBits: 2 }]) {
    answer = () => ({ body: wrong });
    await assert.rejects(new Client(server.url).isShared("terms", ["value 0"], { private: true }), /form of this API/);
    assert.ok(paths().at(-1).endsWith("/ranges"), "no file was asked for");
  }
});

test("a private look-up that cannot be one is refused", async () => {
  const client = new Client(server.url);
  await assert.rejects(client.isShared("terms", ["a"], { private: "ALL" }), /true, false or "all"/);
  await assert.rejects(client.isShared("terms", ["a"], { privat: true }), /did you mean private\?/);
  await assert.rejects(client.isShared("terms", [new SetId("c2V0IG9uZQ")], { private: true }), /SHA-256/);
  assert.equal(server.requests.length, 1);
});
