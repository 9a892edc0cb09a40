// Serves the example's page: node examples/search-terms/start.js [SERVICE [PORT [RELAY [ACCOUNT]]]]
import { createServer } from "node:http";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";

const [service = "http://127.0.0.1:8000", port = "5173", relay, account] = process.argv.slice(2);
const TYPES = { html: "text/html; charset=utf-8", css: "text/css", js: "text/javascript" };
const CLIENT = new URL("../../clients/typescript/dist/", import.meta.url);
const called = [service, ...(relay ? [relay] : [])];
for (const address of called) {
  if (!/^https?:/.test(address) || !URL.canParse(address)) {
    console.error(`${address} is not an address: give http://host:port`);
    process.exit(2);
  }
}
// The page runs only its own code, and calls only the service and the relay.
const POLICY = `default-src 'self'; img-src data:; connect-src ${called.map((address) => new URL(address).origin).join(" ")}`;

if (!existsSync(CLIENT)) {
  console.error("the client is not built: run make example");
  process.exit(1);
}
const server = createServer(async (request, response) => {
  const { pathname } = new URL(request.url, "http://page");
  const [, folder, name] = /^\/(kanon-client\/)?([\w-]+\.(?:html|css|js))$/.exec(pathname === "/" ? "/index.html" : pathname) ?? [];
  try {
    const content = await readFile(new URL(name, folder ? CLIENT : import.meta.url));
    response.setHeader("content-type", TYPES[name.split(".").at(-1)]).setHeader("content-security-policy", POLICY).end(content);
  } catch {
    response.writeHead(404).end();
  }
});
server.on("error", (error) => {
  console.error(error.code === "EADDRINUSE" ? `port ${port} is in use: choose another one` : error.message);
  process.exitCode = 1;
});
server.listen(Number(port), "127.0.0.1", () => {
  const page = `http://127.0.0.1:${server.address().port}`;
  const key = account ? `#${new URLSearchParams({ account })}` : ""; // browsers send nobody what follows a #
  console.log(`${page}/?${new URLSearchParams({ service, ...(relay ? { relay } : {}) })}${key}`);
});
