// examples/report: a report client, written from docs/reference/wire.md alone with other libraries.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { service } from "../service.js";

const CLIENT = await readFile(new URL("../../../../examples/report/report.mjs", import.meta.url), "utf8");
const key = createHash("sha256").update("a foreign value").digest("hex").slice(0, 32);

let stack, folder;
before(async () => {
  stack = await service("reports");
  folder = await mkdtemp(new URL("../../build/foreign-", import.meta.url).pathname); // where its libraries are found
});
after(async () => {
  await stack?.stop();
  await rm(folder, { recursive: true, force: true });
});

async function counted(origin, code) {
  await writeFile(`${folder}/report.mjs`, code.replace("https://report.example", origin));
  const sent = await promisify(execFile)(process.execPath, [`${folder}/report.mjs`, stack.url, "a foreign value", "65536"]);
  assert.equal(sent.stdout, "200 {}\n");
  return await stack.tell("count", origin, key);
}

test("its report is opened and counted", async () => {
  const { result, released } = await counted("https://foreign.example", CLIENT);
  assert.equal(result.return_code, "SUCCESS", result.return_message);
  // The noise has a standard deviation of 1,448: it is above 30,000 with probability e^-29.
  assert.ok(Math.abs(released[key] - 65_536) < 30_000, JSON.stringify(released));
});

test("what its CBOR library writes by default is not counted, and the job says so", async () => {
  const { result } = await counted("https://tagged.example", CLIENT.replace(/new Encoder\(\{.*?\}\)/, "new Encoder()"));
  assert.notEqual(result.return_code, "SUCCESS");
  assert.match(JSON.stringify(result.error_summary), /REPORT_PARSING_ERROR/);
});
