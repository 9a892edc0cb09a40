// Uses the generated types with openapi-fetch: node use_client.js URL, and a wire vector on standard input.
import { readFileSync } from "node:fs";

import createClient from "openapi-fetch";

import type { components, paths } from "./api.js";

type Vector = { set: { id: string }; report: { body: string } };
type Join = components["schemas"]["BatchedJoin"];

const vector = JSON.parse(readFileSync(0, "utf-8")) as Vector;
const set = vector.set.id;
const client = createClient<paths>({ baseUrl: process.argv[2]! });
const path = { type: "fledge", set };

// The answer, or an error that no test expects.
const got = <T>(found: { data?: T; error?: unknown }): T => {
  if (found.data === undefined) throw new Error(JSON.stringify(found.error));
  return found.data;
};

const types = got(await client.GET("/v1/types")).types.map((one) => [one.type, one.k, one.bounds.watched.epsilon]);

got(await client.POST("/v1/types/{type}/sets/{set}:join", { params: { path }, body: { client: "client-1" } }));
got(await client.POST("/v1/types/{type}/sets/{set}:join", { params: { path }, body: { shortClientIdentifier: 7 } }));

const joins: Join[] = Array.from({ length: 3 }, (_, number) => ({ type: "fledge", set, client: `client-${number}` }));
joins.push({ type: "fledgee", set, shortClientIdentifier: 1 });
const results = got(await client.POST("/v1:batchJoin", { body: { joins } })).results.map((one) =>
  "error" in one ? one.error.message : "joined");

const answer = got(await client.POST("/v1:query", { body: { setsForType: [{ type: "fledge", hashes: [set] }] } }));
const status = got(await client.GET("/v1/types/{type}/sets/{set}", { params: { path } }));

const refused = await client.POST("/v1:query", { body: { setsForType: [{ type: "fledgee", hashes: [] }] } });
if (refused.error === undefined || !("error" in refused.error)) throw new Error("a query of an unknown type is answered");

const keys = got(await client.GET("/.well-known/aggregation-service/v1/public-keys")).keys.map((one) => one.id);
const body = JSON.parse(vector.report.body) as components["schemas"]["ReportBody"];
const taken = (await client.POST("/v1/reports", { body })).response.status;

const unit = { api: "kanon", version: "1.0", reporting_origin: "https://report.example", day: "2026-11-20" };
const budget = got(await client.GET("/v1/budget", { params: { query: unit } })).hours.length;

console.log(JSON.stringify({
  types, results, sets: answer.kAnonymousSets, nextUpdate: answer.nextUpdate, kAnonymous: status.kAnonymous,
  refused: refused.error.error.message, keys, taken, budget,
}));
