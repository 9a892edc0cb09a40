// docs/guides/browser.md: its blocks run as written in an empty directory, but for the ports.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { chmodSync, cpSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync, readdirSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";
import { after, before, test } from "node:test";
import { Client } from "../../dist/index.js";
import { block, words } from "../guide.js";
import { browser, open } from "./browser.js";

const HERE = fileURLToPath(new URL("../..", import.meta.url));
const ROOT = fileURLToPath(new URL("../../../..", import.meta.url));
const folder = mkdtempSync(`${tmpdir()}/kanon-guide-`);
let chrome, shell, ports, environment;

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.on("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return String(port);
}

const ported = (text) =>
  text.replaceAll("8000", ports[0]).replaceAll("5173", ports[1]).replace("kanon serve", `kanon serve --port ${ports[0]}`);

/** Until a server answers, which was started in the background. */
async function answers(url) {
  for (;;) {
    if (await fetch(url).then(({ ok }) => ok, () => false)) return;
    if (shell.exitCode !== null) throw new Error(`the commands of the guide ended with ${shell.exitCode}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

before(async () => {
  ports = [await freePort(), await freePort()];
  chrome = await browser();
  for (const name of ["bin", "empty", "clone/build"]) mkdirSync(`${folder}/${name}`, { recursive: true });
  const python = process.env.KANON_PYTHON ?? `${ROOT}.venv/bin/python`;
  writeFileSync(`${folder}/bin/kanon`, `#!/bin/sh\nexec "${python}" -m kanon.cli.start "$@"\n`);
  chmodSync(`${folder}/bin/kanon`, 0o755);
  execFileSync("npm", ["pack", "--silent", "--ignore-scripts", "--pack-destination", `${folder}/clone/build`], { cwd: HERE });
  const [packed] = readdirSync(`${folder}/clone/build`);
  renameSync(`${folder}/clone/build/${packed}`, `${folder}/clone/build/kanon-client.tgz`);
  cpSync(`${ROOT}examples`, `${folder}/clone/examples`, { recursive: true });
  const paths = { PATH: `${folder}/bin:${process.env.PATH}`, PYTHONPATH: `${ROOT}shared`, KANON: `${folder}/clone` };
  environment = { ...process.env, ...paths, npm_config_prefer_offline: "true", npm_config_audit: "false" };
  writeFileSync(`${folder}/empty/index.html`, ported(block("html", "<script")));
  const commands = `${ported(block("sh", "kanon serve"))}wait\n`;
  shell = spawn("bash", ["-e", "-c", commands], { cwd: `${folder}/empty`, env: environment, stdio: ["ignore", "ignore", "inherit"], detached: true });
  await answers(`http://127.0.0.1:${ports[0]}/v1/types`);
  await answers(`http://127.0.0.1:${ports[1]}/`);
});
after(async () => {
  await chrome?.close();
  if (shell) {
    const ended = new Promise((resolve) => shell.on("close", resolve));
    process.kill(-shell.pid, "SIGTERM"); // the group of the shell: the service and the server of the page
    await ended;
  }
  rmSync(folder, { recursive: true, force: true });
});

test("the page joins, asks, and shows that a crowd shares a term", async () => {
  const page = await open(chrome, `http://127.0.0.1:${ports[1]}`);
  const search = async (term) => {
    await page.$eval("input", (input) => (input.value = ""));
    await page.type("input", term);
    await page.keyboard.press("Enter");
  };
  const shows = (text) => page.waitForFunction((text) => document.querySelector("output").value === text, { timeout: 60_000 }, text);
  await search("pizza");
  await shows("not shared");
  const crowd = new Client(`http://127.0.0.1:${ports[0]}`);
  const { surelyTrueFrom } = await crowd.type("fledge");
  await crowd.joinMany(Array.from({ length: surelyTrueFrom }, (_, n) => ({ type: "fledge", value: "pizza", client: `client-${n}` })));
  await shows("a crowd shares it");
  await search("my own words");
  await shows("not shared");
  assert.deepEqual(page.problems, []);
});

test("the page sends a report", async () => {
  const page = await open(chrome, `http://127.0.0.1:${ports[1]}`);
  const code = `import { Reports } from "./node_modules/kanon-client/dist/reports.js";
    ${ported(block("js", "new Reports")).replace("await reports.contribute", "globalThis.sent = await reports.contribute")}`;
  await page.addScriptTag({ type: "module", content: code });
  await page.waitForFunction(() => globalThis.sent === true, { timeout: 60_000 });
});

test("the foreign client sends a report", () => {
  const commands = ported(block("sh", "report.mjs"));
  const printed = execFileSync("bash", ["-e", "-c", commands], { cwd: `${folder}/empty`, env: environment, encoding: "utf8" });
  assert.match(printed, /^200 \{\}$/m);
});

test("the guide is short", () => {
  assert.ok(words <= 500, `${words} words`);
});
