// What a page loads: the client of joins and queries has at most 6 KB, minified and compressed.
import assert from "node:assert/strict";
import { build } from "esbuild";
import { test } from "node:test";
import { brotliCompressSync, gzipSync } from "node:zlib";

async function size(entry) {
  const options = { bundle: true, minify: true, format: "esm", target: "es2022", write: false };
  const { outputFiles } = await build({ ...options, entryPoints: [new URL(`../../dist/${entry}.js`, import.meta.url).pathname] });
  const [{ contents }] = outputFiles;
  return { plain: contents.length, gzip: gzipSync(contents, { level: 9 }).length, brotli: brotliCompressSync(contents).length };
}

const MOST = { index: 6, reports: 10, relay: 4, anonymous: 18, opentelemetry: 1 };
for (const [entry, kilobytes] of Object.entries(MOST)) {
  const most = kilobytes * 1024;
  test(`${entry} has at most ${most} bytes`, async (context) => {
    const found = await size(entry);
    context.diagnostic(`${entry}: ${found.plain} bytes, gzip ${found.gzip}, brotli ${found.brotli}`);
    assert.ok(found.gzip <= most, `${found.gzip} bytes`);
  });
}
