// A headless Chromium, and a site that it opens: pages of another origin than the service's.
import chromium from "@sparticuz/chromium";
import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import puppeteer from "puppeteer-core";

/** Flags of our own. The default ones of @sparticuz/chromium switch CORS off (--disable-web-security). */
const FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars", "--no-first-run"];

export async function browser() {
  const executablePath = process.env.CHROMIUM ?? (await chromium.executablePath().catch(() => ""));
  if (!executablePath || !existsSync(executablePath)) {
    throw new Error("there is no Chromium for these tests: set CHROMIUM to its path (the packaged one needs Linux on x86-64)");
  }
  return await puppeteer.launch({ executablePath, headless: "shell", args: FLAGS, ignoreDefaultArgs: ["--disable-extensions"] });
}

const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };

/** Serve directories, by the first part of their paths, to http://localhost and http://127.0.0.1. */
export async function site(directories, pages = {}) {
  const server = createServer((request, response) => {
    const path = normalize(new URL(request.url, "http://site").pathname);
    const page = pages[path];
    if (page !== undefined) return response.setHeader("content-type", TYPES[extname(path)] ?? TYPES[".html"]).end(page);
    const [, first, ...rest] = path.split("/");
    const file = directories[first] === undefined ? join(directories[""] ?? "/none", path) : join(directories[first], ...rest);
    if (!existsSync(file) || !statSync(file).isFile()) return response.writeHead(404).end();
    response.setHeader("content-type", TYPES[extname(file)] ?? "text/plain");
    createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  return {
    origin: `http://127.0.0.1:${port}`,
    other: `http://localhost:${port}`,
    stop: () => new Promise((resolve) => (server.closeAllConnections(), server.close(resolve))),
  };
}

/** A page that fails the test if it writes an error into its console that is not about the network. */
export async function open(chrome, url) {
  const page = await chrome.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.problems = problems;
  await page.goto(url);
  return page;
}
