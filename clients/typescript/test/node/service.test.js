// The client against the service itself.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, RefusedError } from "../../dist/index.js";
import { service } from "../service.js";

let gate;
before(async () => (gate = await service("gate")));
after(() => gate.stop());

test("a value turns true once a crowd has joined it, and a rare one does not", async () => {
  const types = await new Client(gate.url).types();
  const crowd = types.get("terms").surelyTrueFrom;
  const joins = Array.from({ length: crowd }, (_, n) => ({ type: "terms", value: "shared", client: `client-${n}` }));
  const client = new Client(gate.url, { client: "me" });
  await client.joinMany(joins);
  await client.join("terms", "rare");
  assert.deepEqual(await new Client(gate.url).isShared("terms", ["shared", "rare"]), new Set());
  await gate.tell("step");
  assert.deepEqual(await new Client(gate.url).isShared("terms", ["shared", "rare"]), new Set(["shared"]));
});

test("batches need a key, and work with one", async () => {
  const joins = [{ type: "terms", value: "a", client: "1" }];
  const quiet = { onDrop: () => {} };
  await assert.rejects(new Client(gate.url, { ...quiet, auth: "Bearer wrong" }).joinMany(joins), RefusedError);
  const { key } = await gate.tell("key");
  await new Client(gate.url, { auth: `Bearer ${key}` }).joinMany(joins);
});

test("an unknown type is refused by name before anything is sent", async () => {
  await assert.rejects(new Client(gate.url).isShared("term", ["a"]), /did you mean terms\?/);
});
