// The exporter before another one, with the real SDK: what leaves, and how long a span takes.
import assert from "node:assert/strict";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { after, before, test } from "node:test";
import { Client, valueId } from "../../dist/index.js";
import { SharedOnly } from "../../dist/opentelemetry.js";
import { scripted } from "../service.js";

let server;
before(async () => {
  const id = String(await valueId("shared"));
  const answers = {
    "/v1/types": { types: [{ type: "terms", period: 3600 }] },
    "/v1:query": { kAnonymousSets: [{ type: "terms", hashes: [id] }], step: 1, nextUpdate: "" },
  };
  server = await scripted(({ path }) => ({ headers: { "cache-control": "max-age=600" }, body: answers[path] ?? {} }));
});
after(() => server.stop());

function traced(client) {
  const inner = new InMemorySpanExporter();
  const exporter = new SharedOnly(inner, client, { "search.term": "terms" }, ["page"]);
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
  return { inner, exporter, tracer: provider.getTracer("test") };
}

test("an attribute leaves in clear only if its value is known to be shared", async () => {
  const client = new Client(server.url, { client: "me", onDrop: () => {} });
  const { inner, exporter, tracer } = traced(client);
  await client.isShared("terms", ["shared", "rare"]);
  for (const term of ["shared", "rare", "unheard", 7, ["shared"]]) {
    tracer.startSpan("search", { attributes: { "search.term": term, page: 2 } }).end();
  }
  const found = inner.getFinishedSpans().map(({ attributes }) => attributes);
  assert.deepEqual(found.map((attributes) => attributes["search.term"]), ["shared", ...Array(4).fill("other")]);
  assert.ok(found.every(({ page }) => page === 2));
  for (const term of ["shared", "rare", "unheard"]) await client.join("terms", term);
  assert.equal(server.requests.filter(({ path }) => path.endsWith(":join")).length, 3); // each was joined once
  await exporter.forceFlush();
  await exporter.shutdown();
});

test("events and links are checked too, and the span keeps everything else", () => {
  const { inner, tracer } = traced(new Client(server.url, { client: "me", onDrop: () => {} }));
  const linked = { context: { traceId: "1".repeat(32), spanId: "1".repeat(16), traceFlags: 1 }, attributes: { "search.term": "x", page: 3 } };
  const span = tracer.startSpan("search", { links: [linked] });
  span.addEvent("typed", { "search.term": "y", page: 1 });
  span.setStatus({ code: 2, message: "x and y" });
  span.end();
  const [seen] = inner.getFinishedSpans();
  assert.deepEqual(seen.events[0].attributes, { "search.term": "other", page: 1 });
  assert.deepEqual(seen.links[0].attributes, { "search.term": "other", page: 3 });
  assert.equal(seen.status.code, 2);
  assert.equal(seen.name, "search");
  assert.equal(seen.spanContext().traceId.length, 32);
  assert.ok(seen.ended && seen.duration && seen.resource);
  assert.doesNotMatch(JSON.stringify([seen.attributes, seen.events, seen.links, seen.status]), /"[xy]"|x and y/);
});

test("an attribute that nobody named leaves as other", () => {
  const { inner, tracer } = traced(new Client(server.url, { client: "me", onDrop: () => {} }));
  tracer.startSpan("search", { attributes: { "enduser.id": "alice", "url.full": "https://shop.test/?q=x", page: 2 } }).end();
  const [{ attributes }] = inner.getFinishedSpans();
  assert.deepEqual(attributes, { "enduser.id": "other", "url.full": "other", page: 2 });
});

test("a span takes microseconds", (context) => {
  const client = new Client(server.url, { client: "me", onDrop: () => {} });
  const spans = Array.from({ length: 10_000 }, () => ({ attributes: { "search.term": "shared", page: 2 }, events: [], links: [], status: {} }));
  const exporter = new SharedOnly({ export() {} }, client, { "search.term": "terms" });
  exporter.export(spans, () => {});
  const began = performance.now();
  exporter.export(spans, () => {});
  const each = ((performance.now() - began) / spans.length) * 1000;
  context.diagnostic(`${each.toFixed(1)} microseconds for a span`);
  assert.ok(each < 1000);
});
