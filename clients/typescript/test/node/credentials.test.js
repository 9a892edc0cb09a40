// Anonymous credentials: the bytes of ../credentials.json, which the Python client and the service share.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Credential, CredentialError, credentialContext, PublicKey, Secrets, session, tagContext } from "../../dist/anonymous.js";

const vectors = JSON.parse(readFileSync(new URL("../../../credentials.json", import.meta.url), "utf8"));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (message) => Buffer.from(message).toString("hex");
const [first, second] = vectors.credentials;

/** The source of the scalars of a vector: it has no more than are needed. */
function given(texts) {
  const left = [...texts];
  return () => BigInt(`0x${left.shift()}`);
}

function asked(vector) {
  const context = bytes(vector.context);
  return new Secrets(bytes(vector.secrets)).request(context, context, given(vector.requestScalars));
}

test("every message has the bytes of the vectors", () => {
  assert.ok(vectors.credentials.length > 2);
  for (const vector of vectors.credentials) {
    assert.equal(hex(credentialContext(vector.deployment, vector.epoch)), vector.context);
    assert.equal(hex(new Secrets(bytes(vector.secrets)).commitment()), vector.commitment);
    const request = asked(vector);
    assert.equal(hex(request.message), vector.request);
    const credential = request.finish(new PublicKey(bytes(vector.public)), bytes(vector.response));
    assert.equal(hex(credential.encode()), vector.credential);
    for (const shown of vector.presentations) {
      const set = bytes(shown.set);
      const place = tagContext(vector.deployment, shown.type, set);
      const bound = session({ ...vector, ...shown, set, issuerKey: bytes(vector.public) });
      assert.deepEqual([hex(place), hex(bound)], [shown.tagContext, shown.session]);
      const kept = new Credential(credential.encode());
      const presentation = hex(kept.present(place, bound, given(shown.scalars)));
      assert.equal(presentation, shown.presentation);
      assert.equal(presentation.slice(198, 264), shown.tag);
    }
  }
});

test("what is random differs from time to time, and the tag does not", () => {
  const credential = new Credential(bytes(first.credential));
  const [one, other] = [1, 2].map(() => hex(credential.present(bytes(first.presentations[0].tagContext), bytes("00"))));
  const parts = (text) => text.match(/.{66}/g).slice(0, 4);
  assert.deepEqual(parts(one).map((part, n) => part === parts(other)[n]), [false, false, false, true]);
  assert.equal(parts(one)[3], first.presentations[0].tag);
  assert.notEqual(hex(Secrets.random().encode()), hex(Secrets.random().encode()));
  assert.notEqual(hex(asked(first).message), hex(new Secrets(bytes(first.secrets)).request(bytes(first.context), bytes(first.context)).message));
});

test("a response under another key, to another person or in another session is refused", () => {
  const [own, other] = vectors.issuers.map(({ public: key }) => new PublicKey(bytes(key)));
  const refused = (request, key, response) => assert.throws(() => request.finish(key, bytes(response)), CredentialError);
  refused(asked(first), other, first.response);
  refused(asked(first), own, second.response);
  refused(new Secrets(bytes(first.secrets)).request(bytes(first.context), bytes("00")), own, first.response);
});

test("every part of a response counts", () => {
  const [request, key, sound] = [asked(first), new PublicKey(bytes(first.public)), bytes(first.response)];
  for (let at = 0; at < sound.length; at += 16) {
    const response = sound.slice();
    response[at] ^= 1 << (at / 16) % 8;
    assert.throws(() => request.finish(key, response), CredentialError, `byte ${at}`);
  }
});

test("what is not well encoded is refused, in every place", () => {
  const request = asked(first);
  const key = new PublicKey(bytes(first.public));
  const messages = [
    ["public", 3, 0, (message) => new PublicKey(message)],
    ["secrets", 0, 2, (message) => new Secrets(message)],
    ["credential", 3, 1, (message) => new Credential(message)],
    ["response", 6, 8, (message) => request.finish(key, message)],
  ];
  for (const [name, points, scalars, read] of messages) {
    const sound = bytes(first[name]);
    read(sound);
    const bad = [sound.subarray(1), Uint8Array.of(...sound, 0), new Uint8Array(0)];
    const places = [[0, points, 33, vectors.refusedPoints], [33 * points, scalars, 32, vectors.refusedScalars]];
    for (const [start, count, size, encodings] of places) {
      for (let n = 0; n < count; n++) {
        for (const encoding of encodings) {
          const message = sound.slice();
          message.set(bytes(encoding.hex), start + n * size);
          bad.push(message);
        }
      }
    }
    assert.equal(bad.length, 3 + 6 * points + 4 * scalars);
    for (const message of bad) {
      const notProof = (error) => error instanceof CredentialError && !error.message.includes("proof");
      assert.throws(() => read(message), notProof, `${name} ${hex(message)}`);
    }
  }
});
