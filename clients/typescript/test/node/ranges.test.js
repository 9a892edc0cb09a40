// Range files are read as in every client: ../vectors.json has the same vectors for all of them.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Ranges } from "../../build/ranges.js";

const vectors = JSON.parse(readFileSync(new URL("../../../vectors.json", import.meta.url), "utf8"));
const digest = (text) => new Uint8Array(createHash("sha256").update(text).digest());
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const listOf = ({ type, step, bits }) => new Ranges(type, step, bits);

test("the file of a value has the same name in every client", () => {
  assert.ok(vectors.rangeNames.length > 5);
  for (const { text, bits, name } of vectors.rangeNames) {
    const list = new Ranges("terms", 1, bits);
    assert.equal(list.name(digest(text)), name);
    assert.equal(new Set(list.names()).size, 2 ** bits);
    assert.ok(list.names().includes(name));
  }
});

test("a file has the values of the vectors and no others", () => {
  assert.ok(vectors.rangeFiles.length > 2);
  for (const vector of vectors.rangeFiles) {
    const list = listOf(vector);
    assert.deepEqual(list.missing([vector.name, vector.name]), [vector.name]);
    assert.ok(list.keep(vector.name, bytes(vector.hex)), vector.name);
    assert.deepEqual(list.missing([vector.name]), []);
    const looked = [...vector.listed, ...vector.notListed];
    if (vector.bits) for (const text of looked) assert.equal(list.name(digest(text)), vector.name);
    assert.deepEqual(looked.filter((text) => list.has(digest(text))), vector.listed);
  }
});

test("what is no file of the list is refused", () => {
  assert.ok(vectors.refusedRangeFiles.length > 5);
  for (const { why, hex } of vectors.refusedRangeFiles) {
    const list = listOf(vectors.rangeFiles[1]);
    assert.equal(list.keep("01", bytes(hex)), false, why);
  }
});

test("before the first list no file is read, and no value is listed", () => {
  const list = new Ranges("terms", null, 0);
  assert.deepEqual(list.missing(["all"]), []);
  assert.equal(list.has(digest("hello")), false);
});
