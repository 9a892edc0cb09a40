// What a page loads: the client of joins and queries has at most 6 KB, minified and compressed.
import assert from "node:assert/strict";
import { build } from "esbuild";
import { test } from "node:test";
import { brotliCompressSync, gzipSync } from "node:zlib";

async function size(...entries) {
  const code = entries.map((entry) => `export * from "./${entry}.js";`).join("");
  const stdin = { contents: code, resolveDir: new URL("../../dist", import.meta.url).pathname };
  const { outputFiles } = await build({ stdin, bundle: true, minify: true, format: "esm", target: "es2022", write: false });
  const [{ contents }] = outputFiles;
  return { plain: contents.length, gzip: gzipSync(contents, { level: 9 }).length, brotli: brotliCompressSync(contents).length };
}

const MOST = { index: 6, reports: 10, relay: 4, opentelemetry: 1 };
for (const [entry, kilobytes] of Object.entries(MOST)) {
  const most = kilobytes * 1024;
  test(`${entry} has at most ${most} bytes`, async (context) => {
    const found = await size(entry);
    context.diagnostic(`${entry}: ${found.plain} bytes, gzip ${found.gzip}, brotli ${found.brotli}`);
    assert.ok(found.gzip <= most, `${found.gzip} bytes`);
  });
}

test("anonymous adds at most 20 KB to a page that has the client", async (context) => {
  const [without, together] = [await size("index"), await size("index", "anonymous")];
  const added = together.gzip - without.gzip;
  context.diagnostic(`anonymous: gzip ${added} more, brotli ${together.brotli - without.brotli} more`);
  assert.ok(added <= 20 * 1024, `${added} bytes`);
});
