// The console of `kanon serve` in Chromium, driven by its visible labels. PICTURES=folder keeps a picture of each tab.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, readFile, readdir, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { service } from "../service.js";
import { browser } from "./browser.js";

const AXE = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let chrome, gate, listed, rehearsal, page;
const problems = [];
const foreign = [];
before(async () => {
  [chrome, gate, listed, rehearsal] = await Promise.all([browser(), service("gate"), service("lists"), service("rehearsal")]);
  page = await opened(gate);
});
after(async () => {
  await Promise.all([chrome?.close(), gate?.stop(), listed?.stop(), rehearsal?.stop()]);
});

/** The console of a service. What its page writes into the browser's console, and asks other hosts, is kept. */
async function opened(of) {
  const page = await chrome.newPage();
  page.on("console", (message) => problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  const own = [of.url, "data:", `blob:${of.url}`];
  page.on("request", (request) => own.some((start) => request.url().startsWith(start)) || foreign.push(request.url()));
  await page.setViewport({ width: 1000, height: 800 });
  await page.goto((await of.tell("console")).address);
  return page;
}

const labelled = (text) => page.locator(`::-p-aria([name="${text}"])`);
const tab = (name) => page.locator(`::-p-aria([name="${name}"][role="tab"])`).click();
const button = (name) => page.locator(`::-p-aria([name="${name}"][role="button"])`).click();
const said = (text) => page.waitForFunction((text) => document.querySelector("main section:not([hidden])").innerText.includes(text), { timeout: 60_000 }, text);
const fill = async (label, text) => {
  await labelled(label).click({ count: 3 });
  await labelled(label).fill(text);
};

/** No violation of axe-core in either scheme, nothing wider than a phone; a picture of each. */
async function sound(name) {
  for (const [scheme, width] of [["light", 1000], ["dark", 1000], ["dark", 360]]) {
    await page.setViewport({ width, height: 800 });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    assert.deepEqual(violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), [], `${name}, ${scheme}, ${width}`);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, `${name} is wider than ${width}`);
    const picture = await page.screenshot();
    assert.ok(picture.length > 5_000);
    if (process.env.PICTURES && width === 1000) await writeFile(join(process.env.PICTURES, `${name}-${scheme}.png`), picture);
  }
  await page.setViewport({ width: 1000, height: 800 });
}

test("Now shows the types, what is promised, and the step", async () => {
  await said("Answers are those of step");
  assert.equal(await page.$eval("#health", (e) => e.textContent), "healthy");
  const text = await page.$eval("#types", (e) => e.innerText);
  assert.match(text, /20 clients/);
  assert.match(text, /Whoever believed with 10%/);
  assert.equal(page.url(), `${gate.url}/`, "the token leaves the address");
  assert.equal(await page.$eval("#tab-lists", (e) => e.hidden), true, "no type is listed");
  await sound("now");
});

test("invented clients join until a set turns true, and the page says why", async () => {
  await tab("Try");
  await fill("Value", "pizza <img src=x onerror=document.title=1> near me");
  await fill("Invented clients", "3");
  await button("Join");
  await said("a value is never true");
  await gate.tell("step");
  await fill("Invented clients", "60");
  await button("Join");
  await said("3 of 63 invented clients count");
  await gate.tell("step");
  await said("True since the update of step");
  await said("63 of 63 invented clients count");
  assert.equal(await page.$eval("#moving", (e) => e.hidden), true, "the clock of a service for real use stands where it is");
  await said("the noise decides from");
  await said("Clients (line), k = 20");
  await labelled("As a table").click();
  await said("true");
  assert.equal(await page.title(), "kanon console");
});

test("the clock of a rehearsal moves, and the picture shows count, band and status of every update", async () => {
  const before = page;
  page = await opened(rehearsal);
  await tab("Try");
  const moved = () => page.waitForFunction(() => !document.querySelector("#moving button").disabled, { timeout: 60_000 });
  const move = async (steps) => {
    await fill("Steps", String(steps));
    await button("Move the clock");
    await moved();
  };
  let sent = 0;
  const join = async (clients) => {
    await fill("Invented clients", String(clients));
    await button("Join");
    sent += clients;
    await said(`of ${sent} invented clients count`);
  };
  for (const clients of [4, 5, 6, 8, 20, 40]) {
    await move(1);
    await join(clients);
  }
  await move(2);
  await said("83 of 83 invented clients count");
  await said("True since the update of step");
  await sound("try");

  await labelled("Steps").fill("50"); // with the keyboard alone
  await page.keyboard.press("Enter");
  await moved();
  await said(": 0 of 83 invented clients count");
  const table = await page.$$eval("#try-picture tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
  const steps = table.map(([, step]) => Number(step));
  assert.deepEqual(steps, steps.map((_, n) => steps[0] + n), "no step is left out");
  assert.equal(steps.length, 58);
  assert.deepEqual(table.slice(0, 8).map(([, , count]) => Number(count)), [0, 4, 9, 15, 23, 43, 83, 83]);
  const statuses = table.map(([, , , value]) => value).join(" ");
  assert.match(statuses, /^(false )+(true )+(false ?)+$/);
  page = before;
});

test("the clock moves by whole calls of this page only, and never back", async () => {
  const { address } = await rehearsal.tell("console");
  const [url, token] = address.split("/#");
  const now = async () => (await (await fetch(`${url}/console/clock`)).json()).now;
  const move = (to, headers) => fetch(`${url}/console/run/clock`, { method: "POST", body: JSON.stringify({ to }), headers });
  const own = { "content-type": "application/json", "x-console-token": token };
  const before = await now();
  assert.equal((await move(before + 60, { ...own, "x-console-token": "guess" })).status, 403);
  assert.equal((await move(before + 60, { ...own, origin: "https://example.org" })).status, 403);
  assert.equal((await move(before + 60, { ...own, "content-type": "text/plain" })).status, 415);
  const back = await move(before - 1, own);
  assert.equal(back.status, 400);
  assert.match((await back.json()).problem, /forwards only/);
  assert.equal(await now(), before);
  assert.equal((await move(before + 60, own)).status, 200);
  assert.equal(await now(), before + 60);
});

test("a type is planned with its picture, its price and its bill", async () => {
  await tab("Plan");
  await page.$eval("#k", (e) => { e.value = "100"; e.dispatchEvent(new Event("input")); });
  await button("Plan");
  await said("the noise decides for");
  const text = await page.$eval("#planned", (e) => e.innerText);
  assert.match(text, /"k":100/);
  assert.match(text, /a month on AWS\s+\$\d/);
  assert.match(text, /API Gateway/);
  await sound("plan");
  await fill("Joins a second", "100000000");
  await button("Plan");
  await page.waitForFunction(() => document.querySelector("#plan-said").classList.contains("bad"), { timeout: 60_000 });
  await fill("Joins a second", "10");
});

test("a log is simulated, and one that cannot be read is refused with what to change", async () => {
  const folder = await mkdtemp(join(tmpdir(), "console-"));
  const rows = Array.from({ length: 400 }, (_, n) => `2026-01-0${1 + (n % 5)}T00:00:00Z,s${n % 3},c${n}`);
  await writeFile(join(folder, "good.csv"), ["time,set,client", ...rows].join("\n"));
  await writeFile(join(folder, "bad.csv"), "time,set,client\nyesterday,a,b\n");
  await writeFile(join(folder, "large.csv"), "x".repeat(900_001));
  const choose = async (name) => await (await page.$("#log")).uploadFile(join(folder, name));
  await choose("good.csv");
  await said("400 joins of 3 values");
  await said("values ever true");
  await sound("simulated");
  await choose("bad.csv");
  await said("log.csv, line 2, column time: not a time");
  await choose("large.csv");
  await said("run kanon simulate large.csv");
});

test("the arrow keys move between the tabs", async () => {
  await page.focus("#tab-plan");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-try", "the hidden tab is left out");
  await page.keyboard.press("End");
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-now");
  await page.keyboard.press("End");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-plan");
  assert.equal(await page.$eval("#now", (e) => e.hidden), true);
});

// The lists

const HOSTILE = "<img src=x onerror=document.title=1> \u0007\u202egpj.exe";
const SHOWN = "<img src=x onerror=document.title=1> \\u{7}\\u{202e}gpj.exe";
const SEARCHES = ["pizza near me", "weather  tomorrow", "train to Lyon", '=HYPERLINK("https://example.org", "a")', "caf\u00e9 \u00e0 Paris"];
const values = () => page.$$eval("#list-values tbody tr", (rows) => rows.map((row) => row.cells[0].textContent));
const until = (wanted) => page.waitForFunction((wanted) => [...document.querySelectorAll("#list-values tbody tr")].some((row) => row.cells[0].textContent === wanted), { timeout: 60_000 }, wanted);

/** Let a crowd join values of the listed type. */
async function crowd(names) {
  for (const value of names) {
    const set = createHash("sha256").update(value).digest("base64url");
    const join = (n) => fetch(`${listed.url}/v1/types/searches/sets/${set}:join`, { method: "POST", body: JSON.stringify({ client: `${n}`, value }) });
    const answers = await Promise.all(Array.from({ length: 60 }, (_, n) => join(n)));
    assert.ok(answers.every(({ ok }) => ok));
  }
}

test("a listed type is joined until its value is in the list, which needs a key", async () => {
  page = await opened(listed);
  await tab("Lists");
  await button("Show");
  await said("send a valid key");
  await fill("API key, if lists need one", (await listed.tell("key")).key);
  await button("Show");
  await said("The list of step");
  assert.deepEqual(await values(), []);
  await tab("Try");
  await page.select("#try-type", "searches");
  await page.$eval("#try-value", (e, value) => (e.value = value), HOSTILE);
  await fill("Invented clients", "60");
  await button("Join");
  await said("of 60 invented clients count");
  await listed.tell("step");
  await said("True since the update of step");
  await tab("Lists");
  await until(SHOWN);
  assert.deepEqual(await values(), [SHOWN], "shown as a text, and control characters as escapes");
  assert.equal(await page.$("#list img"), null);
  assert.equal(await page.title(), "kanon console");
});

test("values are listed with their step and time, the newest first, and found", async () => {
  await crowd(SEARCHES);
  await listed.tell("step");
  await until(SEARCHES[0]);
  const rows = await page.$$eval("#list-values tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  assert.deepEqual(rows.map(([value]) => value), [...[...SEARCHES].sort(), SHOWN]);
  const [first, last] = [rows[0], rows.at(-1)];
  assert.equal(Number(first[1]), Number(last[1]) + 1);
  const visible = await page.evaluate(async (path) => {
    const { nextUpdate } = await (await fetch(path)).json();
    return new Date(Date.parse(nextUpdate) - 60_000).toLocaleString(); // a step takes a minute
  }, "/v1/types/searches/sets/aGVsbG8");
  assert.equal(first[2], visible);
  await said("How many values of this list have been true since each step.");
  const points = await page.$eval("#list-picture polyline", (e) => e.getAttribute("points").split(" ").length);
  assert.equal(points, 2 * (SEARCHES.length + 1) + 2);
  await sound("lists");
  await fill("Search", "\\U{202E}");
  await said("1 found");
  assert.deepEqual(await values(), [SHOWN]);
  await fill("Search", "LYON");
  await until("train to Lyon");
  await fill("Search", "nobody looks for this");
  await said("0 found");
});

test("all values are downloaded as CSV, and none of them is a formula", async () => {
  const folder = await mkdtemp(join(tmpdir(), "console-"));
  const session = await page.createCDPSession();
  await session.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: folder, eventsEnabled: true });
  const done = new Promise((resolve) => session.on("Browser.downloadProgress", ({ state }) => state === "completed" && resolve()));
  await button("Download all as CSV");
  await done;
  const [name] = await readdir(folder);
  assert.match(name, /^searches-\d+\.csv$/);
  const lines = (await readFile(join(folder, name), "utf8")).split("\r\n");
  assert.equal(lines.length, SEARCHES.length + 3);
  assert.equal(lines[0], "value,since,time");
  assert.ok(lines.some((line) => line.startsWith(`"'=HYPERLINK(""https://example.org"", ""a"")",`)));
  assert.match(lines.find((line) => line.startsWith(`"${HOSTILE}",`)), /,\d+,2027-01-15T\d\d:\d\d:\d\d\.000Z$/);
});

test("a list of many pages is read from its beginning if the next one replaces it, and its first 500 values are shown", async (context) => {
  const many = Array.from({ length: 600 }, (_, n) => ({ value: `value ${n}`.padEnd(12), since: n }));
  const answers = [many.slice(0, 300), null, many.slice(0, 300), many.slice(300)];
  const asked = [];
  const answer = (request) => {
    const { pathname, search } = new URL(request.url());
    if (!pathname.endsWith("/released")) return request.continue();
    asked.push(search);
    const values = answers.shift();
    const next = search ? null : "600.ab/c";
    const body = JSON.stringify(values ? { type: "searches", step: 600, nextUpdate: "2027-01-15T10:30:00Z", values, next } : { error: { message: "gone" } });
    return request.respond({ status: values ? 200 : 404, contentType: "application/json", body });
  };
  await page.setRequestInterception(true);
  page.on("request", answer);
  context.after(() => (page.off("request", answer), page.setRequestInterception(false)));
  await fill("Search", "value");
  await button("Show");
  await said("600 found. The first 500 are shown.");
  assert.deepEqual(asked.slice(0, 4), ["", "?after=600.ab%2Fc", "", "?after=600.ab%2Fc"]);
  assert.deepEqual(await values(), many.slice(100).reverse().map(({ value }) => value));
});

test("a page that was opened without its token says what to do", async () => {
  const other = await (await chrome.createBrowserContext()).newPage();
  await other.goto(`${gate.url}/#wrong`);
  await other.locator("#tab-plan").click();
  await other.locator("#planning button").click();
  await other.waitForFunction(() => document.querySelector("#plan-said").textContent.includes("open the address"));
});

test("nothing is in the browser's console but refusals, and no other host was asked", () => {
  assert.deepEqual(problems.filter((text) => !/status of 40[014] /.test(text)), []);
  assert.deepEqual(foreign, []);
});
