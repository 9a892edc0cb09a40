// A page in a real browser joins without a name: what the relay and the service get of it.
import assert from "node:assert/strict";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { NGINX, nginx, RELAY_ADDRESS, recorded, relaying, service } from "../service.js";
import { browser, open, site } from "./browser.js";

const DIST = fileURLToPath(new URL("../../dist", import.meta.url));

let chrome, pages, gate;
before(async () => {
  pages = await site({ dist: DIST }, { "/": "<!doctype html><title>a page</title>" });
  [chrome, gate] = await Promise.all([browser(), service("relayed", pages.origin)]);
});
after(() => Promise.all([chrome?.close(), pages?.stop(), gate?.stop()]));

/** A page whose clock is the service's, with cookies for every address. */
async function opened() {
  const page = await open(chrome, pages.origin);
  await page.evaluate((now) => (document.cookie = "account=alice", (Date.now = () => now)), (await gate.tell("now")).now);
  return page;
}

/** What of these requests tells who sent them. */
function traces(requests) {
  const allowed = ["host", "connection", "content-type", "content-length"];
  return requests.flatMap(({ headers, from }) => [
    ...Object.keys(headers).filter((name) => !allowed.includes(name)),
    ...(from.endsWith(RELAY_ADDRESS) ? [] : [from]),
  ]);
}

/** Join and query in a page, through a relay in front of `front`. */
async function joined(front, between, value) {
  const page = await opened();
  const shared = await page.evaluate(async (url, relayUrl, value) => {
    const [{ Client }, { relay }] = await Promise.all([import("/dist/index.js"), import("/dist/relay.js")]);
    const crowd = new Client(url, { through: relay(relayUrl, { delay: () => 0 }) });
    const { surelyTrueFrom } = await crowd.type("terms");
    await crowd.joinMany(Array.from({ length: surelyTrueFrom }, (_, n) => ({ type: "terms", value, client: `${value}-${n}` })));
    await crowd.join("terms", `${value}, rare`, `${value}-rare`);
    return surelyTrueFrom;
  }, front.url, between.url, value);
  assert.deepEqual(page.problems, []);
  return shared;
}

/** A relay of each kind; without nginx that of the tests alone. What comes to it is recorded. */
const RELAYS = { "the relay of the tests": relaying, ...(NGINX ? { nginx: throughNginx } : {}) };

async function throughNginx(url) {
  const relay = await nginx(url);
  const before = await recorded(relay.url);
  return { ...before, stop: () => Promise.all([before.stop(), relay.stop()]) };
}

for (const [name, relayTo] of Object.entries(RELAYS)) test(`with ${name} a page of another origin joins, and the service sees the relay and nothing of the page`, async (context) => {
  const front = await recorded(gate.url);
  const between = await relayTo(front.url);
  context.after(() => Promise.all([front.stop(), between.stop()]));
  const secret = `a secret term, ${name}`;
  const crowd = await joined(front, between, secret);
  const relayed = front.requests.filter(({ path }) => path === "/v1/gateway");
  assert.ok(relayed.length > crowd);
  assert.deepEqual(traces(relayed), []);
  const own = front.requests.filter(({ from }) => !from.endsWith(RELAY_ADDRESS));
  assert.deepEqual([...new Set(own.map(({ method, path }) => `${method} ${path}`))], ["GET /v1/proxy/keys"]);
  for (const { headers } of own) assert.ok(headers.cookie === undefined && headers.referer === undefined);
  // The relay knows the page, and reads nothing.
  const sealed = between.requests.filter(({ method }) => method === "POST");
  assert.ok(sealed.every(({ headers }) => headers.cookie === undefined && headers.referer === undefined));
  assert.ok(sealed.every(({ raw }) => !/terms|secret|client/.test(raw.toString("latin1"))));
  assert.equal(new Set(sealed.map(({ raw }) => raw.length)).size, 1);
  const { logs } = await gate.tell("logs");
  for (const word of ["secret", "alice", pages.origin, between.url, RELAY_ADDRESS]) assert.ok(!logs.includes(word), word);

  await gate.tell("step");
  const page = await opened();
  const shared = await page.evaluate(async (url, relayUrl, secret) => {
    const [{ Client }, { relay }] = await Promise.all([import("/dist/index.js"), import("/dist/relay.js")]);
    const client = new Client(url, { through: relay(relayUrl) });
    return [...(await client.isShared("terms", [secret, `${secret}, rare`]))];
  }, front.url, between.url, secret);
  assert.deepEqual(shared, [secret]);
  assert.deepEqual(page.problems, []);
});

test("a relay that passes on more than it should is seen by this test", async (context) => {
  const front = await recorded(gate.url);
  const between = await relaying(front.url, { forward: ({ "content-type": type, origin }) => ({ ...(type ? { "content-type": type } : {}), origin, "x-forwarded-for": "192.0.2.7" }) });
  context.after(() => Promise.all([front.stop(), between.stop()]));
  await joined(front, between, "another term");
  assert.deepEqual([...new Set(traces(front.requests.filter(({ path }) => path === "/v1/gateway")))].sort(), ["origin", "x-forwarded-for"]);
});

test("a page cannot use a relay that does not allow it", async (context) => {
  const between = await relaying(gate.url, { pages: {} });
  context.after(between.stop);
  const page = await opened();
  const call = async (url, relayUrl) => {
    const [{ Client }, { relay }] = await Promise.all([import("/dist/index.js"), import("/dist/relay.js")]);
    return await new Client(url, { timeout: 1000, through: relay(relayUrl) }).types().catch(({ message }) => message);
  };
  assert.match(await page.evaluate(call, gate.url, between.url), /allows this page \(CORS\)/);
});
