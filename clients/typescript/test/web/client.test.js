// The client in a real browser, in pages of another origin than the service's.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { bucketOf } from "../../dist/index.js";
import { recorded, scripted, service } from "../service.js";
import { browser, open, site } from "./browser.js";

const DIST = fileURLToPath(new URL("../../dist", import.meta.url));
const TYPES = { types: [{ type: "terms", period: 3600 }] };

let chrome, pages, gate, stack;
before(async () => {
  pages = await site({ dist: DIST }, { "/": "<!doctype html><title>a page</title>", "/away": "<!doctype html><title>away</title>" });
  [chrome, gate, stack] = await Promise.all([browser(), service("lists", pages.origin), service("reports", pages.origin)]);
});
after(() => Promise.all([chrome?.close(), pages?.stop(), gate?.stop(), stack?.stop()]));

/** Headers that let pages call, as the service sends them, except those to leave out. */
function allowing(origin, ...without) {
  const headers = { "access-control-allow-origin": origin, "access-control-expose-headers": "retry-after", "access-control-allow-headers": "content-type" };
  for (const name of without) delete headers[name];
  return headers;
}

test("a page of another origin joins without a preflight request, asks with one, and sees a value turn true", async (context) => {
  const seen = await recorded(gate.url);
  context.after(seen.stop);
  const preflights = () => seen.requests.filter(({ method }) => method === "OPTIONS").map(({ path }) => path);
  const page = await open(chrome, pages.origin);
  await page.evaluate(async (url) => {
    const { Client } = await import("/dist/index.js");
    globalThis.client = new Client(url, { client: "me" });
    const crowd = (await client.type("terms")).surelyTrueFrom;
    await client.joinMany(Array.from({ length: crowd }, (_, n) => ({ type: "terms", value: "shared", client: `client-${n}` })));
    await client.join("terms", "rare");
  }, seen.url);
  assert.deepEqual(preflights(), []);
  await gate.tell("step");
  const found = await page.evaluate(async () => [...(await client.isShared("terms", ["shared", "rare"]))]);
  assert.deepEqual(found, ["shared"]);
  await page.evaluate(() => client.isShared("terms", ["something else"]));
  assert.deepEqual(preflights(), ["/v1:query"]); // the browser keeps the answer
  assert.deepEqual(page.problems, []);
});

test("a page of another origin looks into a list without sending a value", async (context) => {
  const seen = await recorded(gate.url);
  context.after(seen.stop);
  const { key } = await gate.tell("key");
  const page = await open(chrome, pages.origin);
  await page.evaluate(async (url, key) => {
    const { Client } = await import("/dist/index.js");
    const crowd = Array.from({ length: 60 }, (_, n) => ({ type: "searches", value: "shared", client: `client-${n}` }));
    await new Client(url).joinMany(crowd);
    globalThis.reader = new Client(url, { auth: `Bearer ${key}` });
  }, seen.url, key);
  await gate.tell("step");
  const before = seen.requests.length;
  const found = await page.evaluate(async () => [...(await reader.isShared("searches", ["shared", "rare"], { private: "all" }))]);
  assert.deepEqual(found, ["shared"]);
  const sent = seen.requests.slice(before).filter(({ method }) => method !== "OPTIONS");
  assert.deepEqual(sent.map(({ path }) => path.replace(/\d+/g, "n")), ["/vn/types", "/vn/types/searches/ranges", "/vn/types/searches/ranges/n/all"]);
  assert.deepEqual(page.problems, []);
});

test("more joins than a browser lets fly at a time all arrive at their first attempt", async () => {
  const page = await open(chrome, pages.origin);
  const [attempts, failed] = await page.evaluate(async (url) => {
    const { Client } = await import("/dist/index.js");
    let [attempts, failed] = [0, 0];
    const sending = globalThis.fetch;
    globalThis.fetch = (...call) => {
      attempts++;
      const sent = sending(...call);
      sent.catch(() => failed++);
      return sent;
    };
    const joins = Array.from({ length: 400 }, (_, n) => ({ type: "terms", value: "many", client: `${n}`.padEnd(256, "x") }));
    await new Client(url).joinMany(joins);
    return [attempts, failed];
  }, gate.url);
  assert.deepEqual([attempts, failed], [401, 0]); // and one for the types
});

test("a worker calls as a page does", async () => {
  const page = await open(chrome, pages.origin);
  const found = await page.evaluate(
    (url) =>
      new Promise((resolve, reject) => {
        const code = `
          const { Client } = await import("${location.origin}/dist/index.js");
          const client = new Client("${url}", { client: "worker" });
          await client.join("terms", "from a worker");
          postMessage([...await client.isShared("terms", ["shared", "from a worker"])]);`;
        const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), { type: "module" });
        worker.onmessage = ({ data }) => resolve(data);
        worker.onerror = ({ message }) => reject(new Error(message));
      }),
    gate.url,
  );
  assert.deepEqual(found, ["shared"]);
});

test("a page reads Retry-After, and the reason of a refusal", async () => {
  await gate.tell("stale");
  const page = await open(chrome, pages.origin);
  const refused = await page.evaluate(async (url) => {
    const { Client, RefusedError } = await import("/dist/index.js");
    const error = await new Client(url, { timeout: 1000 }).isShared("terms", ["a"]).catch((error) => error);
    return [error instanceof RefusedError, error.status, error.retryAfter, error.message];
  }, gate.url);
  assert.deepEqual(refused.slice(0, 3), [true, 503, 5]);
  assert.match(refused[3], /temporarily unavailable/);
  await gate.tell("step");
});

test("a header that the service left out would be noticed", async (context) => {
  const told = { status: 503, body: {} };
  for (const [without, expected] of [[[], 7], [["access-control-expose-headers"], null], [["access-control-allow-origin"], undefined]]) {
    const server = await scripted(({ method, path }) => {
      const headers = { ...allowing(pages.origin, ...without), "retry-after": "7" };
      if (method === "OPTIONS") return { status: 204, headers };
      return path === "/v1/types" ? { headers, body: TYPES } : { ...told, headers };
    });
    context.after(server.stop);
    const page = await open(chrome, pages.origin);
    const seen = await page.evaluate(async (url) => {
      const { Client } = await import("/dist/index.js");
      return (await new Client(url, { timeout: 500 }).isShared("terms", ["a"]).catch((error) => error)).retryAfter;
    }, server.url);
    assert.equal(seen, expected, `without ${without}`);
  }
});

test("a page of an origin that was not named is refused", async () => {
  const page = await open(chrome, pages.other);
  const name = await page.evaluate(async (url) => {
    const { Client } = await import("/dist/index.js");
    return (await new Client(url, { timeout: 500 }).isShared("terms", ["a"]).catch((error) => error)).name;
  }, gate.url);
  assert.equal(name, "NoAnswerError");
});

test("neither a cookie nor the address of the page leaves with a call", async (context) => {
  const server = await scripted(({ path }) => ({ headers: allowing("*"), body: path === "/v1/types" ? TYPES : {} }));
  context.after(server.stop);
  await chrome.setCookie({ name: "session", value: "secret", domain: "127.0.0.1", path: "/" });
  const page = await open(chrome, pages.origin);
  assert.match(await page.evaluate(() => document.cookie), /secret/);
  await page.evaluate(async (url) => {
    const { Client } = await import("/dist/index.js");
    await new Client(url, { client: "me" }).join("terms", "a");
  }, server.url);
  assert.equal(server.requests.length, 2);
  for (const { headers } of server.requests) assert.deepEqual([headers.cookie, headers.referer], [undefined, undefined]);
});

test("a join arrives although its page is left at once", async (context) => {
  let arrived;
  const joined = new Promise((resolve) => (arrived = resolve));
  const server = await scripted(({ path, body }) => {
    if (path.endsWith(":join")) arrived(body);
    return { headers: allowing("*"), body: path === "/v1/types" ? TYPES : {} };
  });
  context.after(server.stop);
  const page = await open(chrome, pages.origin);
  await page.evaluate(async (url) => {
    const { Client } = await import("/dist/index.js");
    const client = new Client(url, { client: "me" });
    await client.types();
    const sending = globalThis.fetch;
    globalThis.fetch = (...call) => {
      const sent = sending(...call);
      location.href = "/away";
      return sent;
    };
    void client.join("terms", "a");
  }, server.url);
  assert.deepEqual(JSON.parse(await joined), { client: "me" });
});

test("a page sends a report that the service opens, and its budget outlives the page", async () => {
  const page = await open(chrome, pages.origin);
  await page.evaluateOnNewDocument((now) => (Date.now = () => now), Date.now()); // no window ends during the test
  await page.reload();
  const contribute = (amount) =>
    page.evaluate(
      async (url, amount) => {
        const { Reports } = await import("/dist/reports.js");
        return await new Reports(url, { origin: "https://page.example", window: 3_600_000 }).contribute("a value", amount);
      },
      stack.url,
      amount,
    );
  assert.equal(await contribute(65_000), true);
  await page.reload();
  assert.equal(await contribute(600), false);
  assert.equal(await contribute(536), true);
  const key = (await bucketOf("a value")).toString(16).padStart(32, "0");
  const { result, released } = await stack.tell("count", "https://page.example", key);
  assert.equal(result.return_code, "SUCCESS", result.return_message);
  assert.ok(Math.abs(released[key] - 65_536) < 30_000, JSON.stringify(released));
});
