// The console of `kanon serve` in Chromium, driven by its visible labels. PICTURES=folder keeps a picture of each tab.
import assert from "node:assert/strict";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { service } from "../service.js";
import { browser } from "./browser.js";

const AXE = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let chrome, gate, page, foreign;
const problems = [];
before(async () => {
  [chrome, gate] = await Promise.all([browser(), service("gate")]);
  page = await chrome.newPage();
  page.on("console", (message) => problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  foreign = [];
  page.on("request", (request) => request.url().startsWith(gate.url) || request.url().startsWith("data:") || foreign.push(request.url()));
  await page.setViewport({ width: 1000, height: 800 });
  await page.goto((await gate.tell("console")).address);
});
after(async () => {
  await Promise.all([chrome?.close(), gate?.stop()]);
});

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
  await said("63 invented clients joined");
  await gate.tell("step");
  await said("True since the update of step");
  await said("the noise decides from");
  await said("Clients (line), k = 20");
  await labelled("As a table").click();
  await said("true");
  assert.equal(await page.title(), "kanon console");
  await sound("try");
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
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-now");
  await page.keyboard.press("End");
  assert.equal(await page.evaluate(() => document.activeElement.id), "tab-plan");
  assert.equal(await page.$eval("#now", (e) => e.hidden), true);
});

test("a page that was opened without its token says what to do", async () => {
  const other = await (await chrome.createBrowserContext()).newPage();
  await other.goto(`${gate.url}/#wrong`);
  await other.locator("#tab-plan").click();
  await other.locator("#planning button").click();
  await other.waitForFunction(() => document.querySelector("#plan-said").textContent.includes("open the address"));
});

test("nothing is in the browser's console but refused plans, and no other host was asked", () => {
  assert.deepEqual(problems.filter((text) => !text.includes("status of 400")), []);
  assert.deepEqual(foreign, []);
});
