// Services for the tests: the real one, which Python serves, and one that answers what a test says.
import { spawn } from "node:child_process";
import { createServer } from "node:http";
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
      const seen = { method: request.method, path: request.url, headers: request.headers, body: Buffer.concat(parts).toString() };
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

/** A server that passes everything on to a service, and records it. */
export async function recorded(url) {
  const unset = ["host", "connection", "content-length", "transfer-encoding"];
  return await scripted(async ({ method, path, headers, body }) => {
    const sent = Object.fromEntries(Object.entries(headers).filter(([name]) => !unset.includes(name)));
    const answer = await fetch(url + path, { method, headers: sent, body: body || null });
    const got = Object.fromEntries([...answer.headers].filter(([name]) => !unset.includes(name)));
    return { status: answer.status, headers: got, body: Buffer.from(await answer.arrayBuffer()) };
  });
}
