// The ids and the waits are those of every client: ../vectors.json has the same vectors for all of them.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { bucketOf, SetId, valueId } from "../../dist/index.js";
import { kept, retryAfter, wait } from "../../build/waiting.js";

const vectors = JSON.parse(readFileSync(new URL("../../../vectors.json", import.meta.url), "utf8"));

test("a value has the same id in every client", async () => {
  assert.ok(vectors.valueIds.length > 10);
  for (const { text, hex, id, bucket } of vectors.valueIds) {
    const value = text ?? Uint8Array.from(Buffer.from(hex, "hex"));
    assert.equal(String(await valueId(value)), id, JSON.stringify(text ?? hex));
    assert.equal((await bucketOf(value)).toString(16).padStart(32, "0"), bucket);
  }
});

test("a text without UTF-8 is refused", async () => {
  for (const text of vectors.refusedTexts) await assert.rejects(valueId(text), /surrogate/);
});

test("an id stays as it is, and is no value", async () => {
  const id = await valueId("a shared value");
  assert.equal(await valueId(id), id);
  assert.notEqual(String(await valueId(String(id))), String(id));
  for (const text of ["", "a", "with space", "a+b=", "x".repeat(87)]) assert.throws(() => new SetId(text), /base64url/);
});

test("what is neither text nor bytes is refused", async () => {
  for (const value of [7, null, undefined, ["a"]]) await assert.rejects(valueId(value), /text/);
});

test("waits and kept answers are those of every client", () => {
  assert.ok(vectors.waits.length && vectors.cached.length);
  for (const { failed, random, retryAfter, seconds } of vectors.waits) assert.equal(wait(failed, random, retryAfter), seconds);
  for (const { maxAge, age, spread, random, seconds } of vectors.cached) assert.equal(kept(maxAge, age, spread, random), seconds);
});

test("Retry-After is read as whole seconds only", () => {
  const read = (text) => retryAfter(new Headers({ "retry-after": text }));
  assert.deepEqual(["7", "0", "Wed, 21 Oct 2026 07:28:00 GMT", "-1", "1.5"].map(read), [7, 0, null, null, null]);
});
