// The hooks of the guide, as written, in the SDKs of Sentry and PostHog: what they send.
import assert from "node:assert/strict";
import { build } from "esbuild";
import { after, before, test } from "node:test";
import { valueId } from "../../dist/index.js";
import { block } from "../guide.js";
import { scripted } from "../service.js";
import { browser, open, site } from "./browser.js";

const PAGE = (url, collector) => `
  import * as Sentry from "@sentry/browser";
  import posthog from "posthog-js";
  import { Client } from "./dist/index.js";

  const kanon = new Client("${url}", { client: "me" });
  await kanon.isShared("fledge", ["shared-term", "rare-term"]);
  Sentry.init({
    dsn: "${collector.replace("http://", "http://key@")}/1",
    ${block("js", "// Sentry").replace("// Sentry", "")}
  });
  posthog.init("key", {
    api_host: "${collector}", autocapture: false, capture_pageview: false, disable_session_recording: true,
    disable_compression: true, request_batching: false, opt_out_useragent_filter: true, disable_external_dependency_loading: true,
    ${block("js", "// PostHog").replace("// PostHog", "")}
  });
  for (const [n, term] of ["shared-term", "rare-term", "unheard-term"].entries()) {
    Sentry.captureException(new RangeError("no result for " + term + n), { tags: { term, other: term } });
    posthog.capture("search", { term, query: term });
  }
  await kanon.join("fledge", "unheard-term");
  Sentry.captureException(new TypeError("without a term"));`;

let chrome, gate, collector, pages, told;
const events = [];
const searches = () => events.filter((event) => /"term":/.test(event));
before(async () => {
  const id = String(await valueId("shared-term"));
  const headers = { "access-control-allow-origin": "*", "access-control-allow-headers": "*", "cache-control": "max-age=600" };
  const answers = {
    "/v1/types": { types: [{ type: "fledge", period: 3600 }] },
    "/v1:query": { kAnonymousSets: [{ type: "fledge", hashes: [id] }], step: 1, nextUpdate: "" },
  };
  gate = await scripted(({ path }) => ({ headers, body: answers[path] ?? {} }));
  const seven = new Promise((resolve) => (told = resolve));
  collector = await scripted(({ body }) => {
    if (body) events.push(body);
    if (searches().length === 6 && events.some((event) => event.includes("TypeError"))) told();
    return { headers };
  });
  const stdin = { contents: PAGE(gate.url, collector.url), resolveDir: new URL("../..", import.meta.url).pathname };
  const { outputFiles } = await build({ stdin, bundle: true, format: "esm", write: false, logLevel: "error" });
  pages = await site({}, { "/": '<!doctype html><title>shop</title><script type="module" src="page.js"></script>', "/page.js": outputFiles[0].text });
  chrome = await browser();
  await open(chrome, `${pages.origin}/?q=rare-term`);
  await seven;
});
after(() => Promise.all([chrome?.close(), gate?.stop(), collector?.stop(), pages?.stop()]));

test("a term leaves in clear only if a crowd shares it", () => {
  const terms = searches().map((event) => /"term":"([^"]*)"/.exec(event)[1]).sort();
  assert.deepEqual(terms, ["other", "other", "other", "other", "shared-term", "shared-term"]);
  for (const event of events) assert.doesNotMatch(event, /rare-term|unheard-term/);
});

test("no event has the address of the page, of a call, or a message", () => {
  for (const event of events) assert.doesNotMatch(event, /\/sets\/|\?q=|no result for|without a term/);
});

test("an error still says what it is and where", () => {
  const [error] = events.filter((event) => event.includes("RangeError"));
  assert.match(error, /"lineno":\d+/);
});

test("each term was joined once", () => {
  assert.equal(gate.requests.filter(({ path }) => path.endsWith(":join")).length, 3);
});
