// The example of docs/: its page in Chromium, against the service. PICTURE=file keeps the picture.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { RELAY_ADDRESS, recorded, relaying, service } from "../service.js";
import { browser, open } from "./browser.js";

const START = fileURLToPath(new URL("../../../../examples/search-terms/start.js", import.meta.url));

const started = [];
let chrome, gate, hidden, people;
before(async () => {
  [chrome, gate, hidden, people] = await Promise.all([browser(), ...["gate", "relayed", "people"].map((kind) => service(kind, "*"))]);
});
after(async () => {
  for (const example of started) example.kill();
  await Promise.all([chrome?.close(), gate?.stop(), hidden?.stop(), people?.stop()]);
});

/** The address of the example's page. */
async function start(...parameters) {
  const example = spawn(process.execPath, [START, ...parameters], { stdio: ["ignore", "pipe", "inherit"] });
  started.push(example);
  const [address] = await once(example.stdout.setEncoding("utf8"), "data");
  return address.trim();
}

/** Wait until the table gives this answer for these terms. */
function shown(page, terms, answer) {
  return page.waitForFunction(
    (terms, answer) =>
      terms.every((term) => [...document.querySelectorAll("#terms tr")].some(({ cells }) => cells[0].textContent === term && cells[2]?.textContent.split(",")[0] === answer)),
    { timeout: 60_000 },
    terms,
    answer,
  );
}

const rows = (page) => page.$$eval("#terms tr", (found) => found.map((row) => [...row.cells].map((cell) => cell.textContent)));

test("a crowd's terms turn true in the table, and a visitor's own do not", async () => {
  const page = await open(chrome, await start(gate.url, "0"));
  await page.setViewport({ width: 1080, height: 860, deviceScaleFactor: 1.5 });
  await page.waitForFunction(() => document.querySelector("#about").textContent.includes("visitors have searched"));
  await page.type("#term", "my own words");
  await page.click("#search button");
  await page.click("#crowd");
  const all = ["weather tomorrow", "name of an old friend", "my own words"];
  await shown(page, all, "no"); // nothing has been evaluated
  const lines = (id) => page.$eval(id, (log) => log.textContent.split("\n").length);
  await page.waitForFunction(() => {
    const [typed, sent] = ["browser", "service"].map((id) => document.getElementById(id).textContent);
    return typed.includes("name of an old friend") && typed.split("\n").length === sent.split("\n").length;
  });
  assert.ok((await lines("#service")) > 50);
  const searched = (await rows(page)).map(([term, searches]) => [term, Number(searches)]);
  assert.deepEqual(searched.slice(-2).map(([, searches]) => searches), [1, 1]);
  assert.ok(searched[0][1] > searched[1][1] && searched[1][1] > 20, String(searched));
  await gate.tell("step");
  await page.evaluate(() => (Date.now = ((now) => () => now() + 120_000)(Date.now))); // what was kept is too old now
  await shown(page, ["weather tomorrow", "pizza near me"], "yes");
  const found = Object.fromEntries((await rows(page)).map(([term, , answer]) => [term, answer]));
  for (const term of ["rare disease forum", "name of an old friend", "my own words"]) assert.equal(found[term], "no");
  const [typed, sent, asked] = await page.$$eval("article pre", (logs) => logs.map((log) => log.textContent));
  assert.match(typed, /you: my own words/);
  for (const term of Object.keys(found)) assert.ok(!sent.includes(term) && !asked.includes(term), term);
  assert.match(asked, /true/);
  assert.deepEqual(page.problems, []);
  const picture = await page.screenshot({ path: process.env.PICTURE, fullPage: true });
  assert.ok(picture.length > 20_000);
  const hostile = "<img src=x onerror=document.title=1>";
  await page.type("#term", hostile);
  await page.click("#search button");
  await shown(page, [hostile], "no");
  assert.equal(await page.title(), "Search terms that a crowd shares");
});

test("with a relay the service gets the terms of a visitor from the relay, under names that nothing links", async (context) => {
  const front = await recorded(hidden.url);
  const between = await relaying(front.url);
  context.after(() => Promise.all([front.stop(), between.stop()]));
  const page = await chrome.newPage();
  const { now } = await hidden.tell("now");
  await page.evaluateOnNewDocument((now) => ((Date.now = () => now), (Math.random = () => 0), (crypto.getRandomValues = (numbers) => numbers.fill(0))), now);
  await page.goto(await start(front.url, "0", between.url));
  await page.waitForFunction(() => document.querySelector("#about").textContent.includes("visitors have searched"));
  for (const term of ["one term", "another term"]) {
    await page.type("#term", term);
    await page.click("#search button");
  }
  await page.click("#crowd");
  await shown(page, ["one term", "another term", "weather tomorrow", "name of an old friend"], "no");
  await page.waitForFunction(() => document.getElementById("service").textContent.split("\n").length > 60);
  const own = front.requests.filter(({ from }) => !from.endsWith(RELAY_ADDRESS)).map(({ path }) => path);
  assert.deepEqual(new Set(own), new Set(["/v1/proxy/keys"]));
  const [typed, sent] = await page.$$eval("article pre", (logs) => logs.map((log) => log.textContent.split("\n")));
  const mine = typed.filter((line) => line.startsWith("you:")).length;
  assert.equal(mine, 2);
  const names = sent.filter(Boolean).map((line) => line.split("client ")[1]);
  assert.equal(new Set(names).size, names.length, "no name is used for two terms");
  await hidden.tell("step");
  await page.evaluate((now) => (Date.now = () => now), (await hidden.tell("now")).now);
  await shown(page, ["weather tomorrow"], "yes");
  await shown(page, ["one term", "another term"], "no");
});

test("with an account the visitor joins without a name, and its key does not reach the page's host", async (context) => {
  const front = await recorded(people.url);
  const between = await relaying(front.url);
  context.after(() => Promise.all([front.stop(), between.stop()]));
  const { key } = await people.tell("account", "visitor");
  const address = new URL(await start(front.url, "0", between.url, key));
  assert.ok(address.hash.includes(encodeURIComponent(key)) && !address.search.includes(key));
  const page = await chrome.newPage();
  const { now } = await people.tell("now");
  await page.evaluateOnNewDocument((now) => {
    Date.now = () => now;
    const draw = crypto.getRandomValues.bind(crypto);
    crypto.getRandomValues = (numbers) => (numbers instanceof Uint32Array ? numbers.fill(0) : draw(numbers)); // no join waits
  }, now);
  await page.goto(String(address));
  await page.waitForFunction(() => document.querySelector("#about").textContent.includes("visitors have searched"));
  assert.equal(await page.$eval("#crowd", (button) => getComputedStyle(button).display), "none");
  for (const term of ["one term", "another term"]) {
    await page.type("#term", term);
    await page.click("#search button");
  }
  await page.waitForFunction(() => document.getElementById("service").textContent.split("\n").filter(Boolean).length === 2);
  await shown(page, ["one term", "another term"], "no");
  assert.equal((await people.tell("joins")).joins, 2);
  const joined = (await people.tell("seen")).requests.filter(({ path }) => path.endsWith(":join"));
  const asked = (await people.tell("seen")).requests.filter(({ path }) => path.endsWith("query"));
  assert.ok(asked.length > 1 && asked.every(({ body }) => JSON.parse(body).setsForType[0].hashes.length === 1));
  assert.deepEqual(joined.map(({ headers, body }) => [headers, Object.keys(JSON.parse(body))]), [[{}, ["presentation"]], [{}, ["presentation"]]]);
  assert.ok(front.requests.every(({ from, path }) => from.endsWith(RELAY_ADDRESS) || path.endsWith("/keys")));
  assert.ok(await page.$eval("#problem", ({ hidden }) => hidden));
});
