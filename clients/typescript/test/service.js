// Services for the tests: the real one, which Python serves, and one that answers what a test says.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request as send } from "node:http";
import { createServer as createSocket } from "node:net";
import { tmpdir } from "node:os";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));

/** Start `python -m tests.web.service`. It ends with its input, so also with this process. */
export async function service(kind, origin = "http://127.0.0.1:1") {
  const python = process.env.KANON_PYTHON ?? `${ROOT}.venv/bin/python`;
  const env = { ...process.env, PYTHONPATH: `${ROOT}shared:${ROOT}` };
  const child = spawn(python, ["-m", "tests.web.service", kind, origin], { cwd: ROOT, env, stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve, reject) => {
    child.on("error", (cause) => reject(new Error(`${python} cannot start: run make install, or set KANON_PYTHON`, { cause })));
    child.on("close", resolve);
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const read = async () => {
    const line = await Promise.race([lines.next(), ended.then(() => ({ done: true }))]);
    if (line.done) throw new Error("the service ended: its error is above");
    return JSON.parse(line.value);
  };
  const { url } = await read();
  return {
    url,
    async tell(...command) {
      child.stdin.write(`${command.join(" ")}\n`);
      return await read();
    },
    async stop() {
      child.stdin.end();
      await ended;
    },
  };
}

/** A server that answers each request with what `answer` returns: {status, headers, body}. */
export async function scripted(answer) {
  const requests = [];
  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", async () => {
      const raw = Buffer.concat(parts);
      const { method, url: path, headers: sent, socket } = request;
      const seen = { method, path, headers: sent, body: raw.toString(), raw, from: socket.remoteAddress };
      requests.push(seen);
      const { status = 200, headers = {}, body = {} } = await answer(seen, requests.length);
      response.writeHead(status, { "content-type": "application/json", ...headers });
      response.end(typeof body === "string" || ArrayBuffer.isView(body) ? body : JSON.stringify(body));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const stop = () => new Promise((resolve) => (server.closeAllConnections(), server.close(resolve)));
  return { url: `http://127.0.0.1:${server.address().port}`, requests, stop };
}

const HOP = ["host", "connection", "content-length", "transfer-encoding"];
const onward = (headers) => Object.fromEntries(Object.entries(headers).filter(([name]) => !HOP.includes(name)));

/** Send a request from a loopback address; the answer for `scripted`. */
function passed(url, method, path, headers, raw, localAddress = "127.0.0.1") {
  return new Promise((resolve, reject) => {
    const request = send(url + path, { method, headers: { ...headers, "content-length": raw.length }, localAddress }, (answer) => {
      const parts = [];
      answer.on("data", (part) => parts.push(part));
      answer.on("end", () => resolve({ status: answer.statusCode, headers: onward(answer.headers), body: Buffer.concat(parts) }));
    });
    request.on("error", reject);
    request.end(raw);
  });
}

/** A server that passes everything on to a service, and records it. */
export async function recorded(url, instead) {
  return await scripted(async (seen) => {
    const { method, path, headers, raw } = seen;
    return (await instead?.(seen)) ?? (await passed(url, method, path, onward(headers), raw));
  });
}

/** A store of `kanon-client/anonymous` in memory, which takes its time, as databases do. */
export function kept(text) {
  return { read: () => new Promise((done) => setTimeout(() => done(text), 5)), replace: async (change) => (text = change(text)) };
}

export const RELAY_ADDRESS = "127.0.0.2";

const PAGES = { "access-control-allow-origin": "*", "access-control-allow-headers": "content-type" };

/** A relay with the rules of docs/guides/relay.md. `forward` chooses the headers that go on, `pages` allows them. */
export async function relaying(url, { forward = ({ "content-type": type }) => (type ? { "content-type": type } : {}), instead, pages = PAGES } = {}) {
  return await scripted(async (seen) => {
    const { method, path, headers, raw } = seen;
    if (method === "OPTIONS") return { status: 204, headers: pages, body: "" };
    if (!["POST /v1/gateway", "GET /v1/proxy/keys"].includes(`${method} ${path}`)) return { status: 404 };
    const answer = (await instead?.(seen)) ?? (await passed(url, method, path, forward(headers), raw, RELAY_ADDRESS));
    return { ...answer, headers: { ...answer.headers, ...pages } };
  });
}

export const NGINX = ["/usr/sbin/nginx", "/usr/local/sbin/nginx", "/usr/bin/nginx"].find(existsSync);

/** The relay of docs/guides/relay.md in a real nginx, without TLS and for more than ten calls a second. */
export async function nginx(url) {
  const [, block] = readFileSync(`${ROOT}docs/guides/relay.md`, "utf8").match(/```nginx\n(.*?)```/s);
  const folder = mkdtempSync(`${tmpdir()}/relay-`);
  const port = await freePort();
  const here = [
    ["listen 443 ssl;", `listen 127.0.0.1:${port}; proxy_bind ${RELAY_ADDRESS};`],
    ["https://kanon.example/", `${url}/`],
    ["/var/cache/nginx", folder],
    ["rate=10r/s", "rate=10000r/s"],
  ];
  const own = here.reduce((text, [name, value]) => {
    if (!text.includes(name)) throw new Error(`the guide has no ${name}`);
    return text.replaceAll(name, value);
  }, block.replace(/^ *(ssl_certificate|proxy_ssl_trusted).*$/gm, ""));
  mkdirSync(`${folder}/kanon`);
  const kinds = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((kind) => `${kind}_temp_path ${folder}/${kind};`).join(" ");
  const user = process.getuid() === 0 ? "user root;" : "";
  writeFileSync(`${folder}/conf`, `${user} daemon off; pid ${folder}/pid; events {} http { access_log off; ${kinds}\n${own} }`);
  const child = spawn(NGINX, ["-p", folder, "-e", `${folder}/start`, "-c", `${folder}/conf`], { stdio: ["ignore", "ignore", "inherit"] });
  const ended = once(child, "exit");
  const answers = () => fetch(`http://127.0.0.1:${port}/`).then(() => true, () => false);
  while (child.exitCode === null && !(await answers())) await new Promise((resolve) => setTimeout(resolve, 20));
  return {
    url: `http://127.0.0.1:${port}`,
    async stop() {
      child.kill();
      await ended;
      rmSync(folder, { recursive: true });
    },
  };
}

async function freePort() {
  const server = createSocket().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}
