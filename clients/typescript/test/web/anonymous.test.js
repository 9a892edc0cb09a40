// A page joins with a credential, through a relay: what the service gets of it, and what the browser keeps.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { RELAY_ADDRESS, recorded, relaying, service } from "../service.js";
import { browser, open, site } from "./browser.js";

const GUIDE = readFileSync(new URL("../../../../docs/guides/anonymous.md", import.meta.url), "utf8");
const DIST = fileURLToPath(new URL("../../dist", import.meta.url));

let chrome, pages, gate, front, between;
before(async () => {
  pages = await site({ dist: DIST }, { "/": "<!doctype html><title>a page</title>" });
  [chrome, gate] = await Promise.all([browser(), service("people", pages.origin)]);
  front = await recorded(gate.url);
  between = await relaying(front.url);
});
after(async () => {
  await chrome?.close();
  await Promise.all([pages, front, between].map((each) => each?.stop()));
  await gate?.stop();
});

const now = async () => (await gate.tell("now")).now;
const account = async (name) => `Bearer ${(await gate.tell("account", name)).key}`;

/** A page in a profile of its own, with what the tests need of the client. */
async function opened(profile) {
  const context = profile ?? (await chrome.createBrowserContext());
  const page = await open(context, pages.origin);
  await page.evaluate((now) => (Date.now = () => now), await now());
  await page.evaluate(async (url, relayUrl) => {
    document.cookie = "account=alice";
    const [{ Client }, { relay }, { Anonymous, recoveryCode }] = await Promise.all(["index", "relay", "anonymous"].map((name) => import(`/dist/${name}.js`)));
    const [through, me] = [relay(relayUrl), new Anonymous({ spread: 0 })];
    const client = new Client(url, { anonymous: me, through });
    globalThis.kanon = { recoveryCode, client, enrol: (auth, recovery) => me.enrol(url, { auth, through, ...(recovery ? { recovery } : {}) }) };
  }, front.url, between.url);
  return page;
}

const enrol = (page, auth, recovery) => page.evaluate((auth, recovery) => kanon.enrol(auth, recovery), auth, recovery ?? null);
const join = (page, ...values) => page.evaluate((values) => kanon.client.joinMany(values.map((value) => ({ type: "people", value }))), values);
const refusal = (page, value) => page.evaluate((value) => kanon.client.join("people", value).then(() => "", ({ name }) => name), value);
const joins = async () => (await gate.tell("joins")).joins;
const newStep = () => gate.tell("step");

/** What the points and numbers of a proof are; the tag is the fourth. */
const parts = ({ body }) => Buffer.from(JSON.parse(body).presentation.proof, "base64url").toString("hex").match(/.{66}/g).slice(0, 4);

test("a page enrols and joins through a relay: the service gets no address, account or link between its sets", async () => {
  const auth = await account("alice");
  const page = await opened();
  const from = (await gate.tell("seen")).requests.length;
  await enrol(page, auth);
  await join(page, "one term", "another term", "a third term");
  assert.deepEqual(page.problems, []);

  // The address: everything but the keys comes from the relay, without a header of the page.
  const own = front.requests.filter(({ from }) => !from.endsWith(RELAY_ADDRESS));
  assert.deepEqual(new Set(own.map(({ method, path }) => `${method} ${path}`)), new Set(["GET /v1/credentials/keys", "GET /v1/proxy/keys"]));
  for (const { headers } of own) assert.ok(headers.cookie === undefined && headers.referer === undefined && headers.authorization === undefined);
  const relayed = front.requests.filter(({ from }) => from.endsWith(RELAY_ADDRESS));
  const allowed = ["host", "connection", "content-type", "content-length"];
  assert.deepEqual(relayed.flatMap(({ headers }) => Object.keys(headers)).filter((name) => !allowed.includes(name)), []);

  // The account and the other sets: what the service reads in a join is a set, and a proof that is new each time.
  const read = (await gate.tell("seen")).requests.slice(from);
  const joined = read.filter(({ path }) => path.endsWith(":join"));
  assert.equal(joined.length, 3);
  assert.deepEqual(joined.map(({ headers }) => headers), [{}, {}, {}]);
  for (const { body } of joined) assert.deepEqual(Object.keys(JSON.parse(body)), ["presentation"]);
  assert.equal(new Set(joined.map(({ body }) => JSON.stringify({ ...JSON.parse(body).presentation, proof: "" }))).size, 1);
  const shown = joined.flatMap(parts);
  assert.equal(new Set(shown).size, 12);
  const enrolled = Buffer.from(JSON.parse(read.find(({ method, path }) => method === "POST" && path === "/v1/credentials").body).request, "base64url").toString("hex");
  assert.ok(shown.every((part) => !enrolled.includes(part)));

  // The relay reads nothing, and joins have one length. Nothing is logged.
  const sealed = between.requests.filter(({ method }) => method === "POST");
  assert.ok(sealed.every(({ raw }) => !/people|presentation|Bearer/.test(raw.toString("latin1"))));
  assert.equal(new Set(sealed.slice(-3).map(({ raw }) => raw.length)).size, 1);
  const { logs } = await gate.tell("logs");
  for (const word of ["alice", auth.slice(7), pages.origin, between.url, RELAY_ADDRESS, ...shown.slice(0, 4)]) assert.ok(!logs.includes(word), word);
});

test("three devices of one account count one, and accounts count one each", async () => {
  await newStep();
  const [auth, first] = [await account("bob"), await opened()];
  const code = await first.evaluate(() => kanon.recoveryCode());
  const devices = [first, await opened(), await opened()];
  for (const device of devices) await enrol(device, auth, code);
  for (const device of devices) await join(device, "shared");
  assert.equal(await joins(), 1);
  for (let n = 2; n <= 4; n++) {
    const page = await opened();
    await enrol(page, await account(`person-${n}`));
    await join(page, "shared");
    assert.equal(await joins(), n);
  }
});

test("the browser keeps the credential when a page is loaded again, and two tabs have one", async () => {
  await newStep();
  const [auth, profile] = [await account("carol"), await chrome.createBrowserContext()];
  const tabs = [await opened(profile), await opened(profile)];
  assert.equal(await refusal(tabs[0], "kept"), "EnrolmentError");
  await Promise.all(tabs.map((tab) => enrol(tab, auth)));
  await Promise.all(tabs.map((tab) => join(tab, "kept")));
  assert.equal(await joins(), 1);
  await Promise.all(tabs.map((tab) => tab.close()));
  const again = await opened(profile);
  assert.equal(await refusal(again, "kept"), "");
  assert.equal(await joins(), 1);
  assert.equal(await refusal(await opened(), "kept"), "EnrolmentError"); // another profile has none
  await again.evaluate(() => new Promise((done) => (indexedDB.deleteDatabase("kanon").onsuccess = done)));
  assert.equal(await refusal(again, "another"), "EnrolmentError");
});

test("the page of the guide joins", async () => {
  await newStep();
  const [, block] = GUIDE.match(/```js\n(.*?)```/s);
  const here = [["https://kanon.example", front.url], ["https://relay.example", between.url], ["${key}", (await account("dora")).slice(7)]];
  const code = here.reduce((text, [name, value]) => text.replace(name, value), block).replace(/^(client\.join.*?);.*$/m, "globalThis.joined = $1.then(() => true);");
  const page = await opened();
  await page.evaluate(() => {
    const draw = crypto.getRandomValues.bind(crypto);
    crypto.getRandomValues = (numbers) => (numbers instanceof Uint32Array ? numbers.fill(0) : draw(numbers)); // no join waits
  });
  await page.addScriptTag({ type: "module", content: code.replace(/"kanon-client(\/\w+)?"/g, (_, name = "/index") => `"/dist${name}.js"`) });
  await page.waitForFunction(() => globalThis.joined);
  assert.equal(await joins(), 1);
  assert.deepEqual(page.problems, []);
});
