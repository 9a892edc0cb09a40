// The client against the service itself.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Client, RefusedError } from "../../dist/index.js";
import { service } from "../service.js";

let gate;
before(async () => (gate = await service("lists")));
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

test("a listed type is read as a list, and looked into in private", async () => {
  const { key } = await gate.tell("key");
  const client = new Client(gate.url, { auth: `Bearer ${key}` });
  const value = "caf\u00e9 \u0007";
  const joins = Array.from({ length: 60 }, (_, n) => ({ type: "searches", value, client: `client-${n}` }));
  await client.joinMany(joins);
  await new Client(gate.url, { client: "me" }).join("searches", "rare");
  await gate.tell("step");
  const { values, step } = await client.released("searches");
  assert.deepEqual(values, [{ value, since: step }]);
  for (const look of [{}, { private: true }, { private: "all" }]) {
    assert.deepEqual(await client.isShared("searches", [value, "rare"], look), new Set([value]));
  }
  await assert.rejects(new Client(gate.url).released("searches"), (thrown) => thrown instanceof RefusedError && thrown.status === 401);
  await assert.rejects(client.released("terms"), /not listed/);
});

test("an unknown type is refused by name before anything is sent", async () => {
  await assert.rejects(new Client(gate.url).isShared("term", ["a"]), /did you mean terms\?/);
});
