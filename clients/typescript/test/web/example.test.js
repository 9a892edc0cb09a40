// The example of docs/: its page in Chromium, against the service. PICTURE=file keeps the picture.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { service } from "../service.js";
import { browser, open } from "./browser.js";

const START = fileURLToPath(new URL("../../../../examples/search-terms/start.js", import.meta.url));

let chrome, gate, example;
before(async () => {
  [chrome, gate] = await Promise.all([browser(), service("gate", "*")]);
});
after(async () => {
  example?.kill();
  await Promise.all([chrome?.close(), gate?.stop()]);
});

const rows = (page) => page.$$eval("#terms tr", (found) => found.map((row) => [...row.cells].map((cell) => cell.textContent)));

test("a crowd's terms turn true in the table, and a visitor's own do not", async () => {
  example = spawn(process.execPath, [START, gate.url, "0"], { stdio: ["ignore", "pipe", "inherit"] });
  const [address] = await once(example.stdout.setEncoding("utf8"), "data");
  const page = await open(chrome, address.trim());
  await page.setViewport({ width: 1080, height: 860, deviceScaleFactor: 1.5 });
  await page.waitForFunction(() => document.querySelector("#about").textContent.includes("visitors have searched"));
  await page.type("#term", "my own words");
  await page.click("#search button");
  await page.click("#crowd");
  const all = ["weather tomorrow", "name of an old friend", "my own words"];
  const shown = (terms, answer) =>
    page.waitForFunction(
      (terms, answer) =>
        terms.every((term) => [...document.querySelectorAll("#terms tr")].some(({ cells }) => cells[0].textContent === term && cells[2]?.textContent.startsWith(answer))),
      { timeout: 60_000 },
      terms,
      answer,
    );
  await shown(all, "no"); // nothing has been evaluated
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
  await shown(["weather tomorrow", "pizza near me"], "yes");
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
  await shown([hostile], "no");
  assert.equal(await page.title(), "Search terms that a crowd shares");
});
