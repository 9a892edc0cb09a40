// What a program in TypeScript sees: `tsc` must accept these lines, and refuse those that expect an error.
import { BatchSpanProcessor, type SpanExporter } from "@opentelemetry/sdk-trace-base";
import { Client, valueId, type Options, type Released, type SetId, type Type } from "kanon-client";
import { Anonymous, credentialContext, PublicKey, recoveryCode, Secrets, tagContext, type Credential, type Store } from "kanon-client/anonymous";
import { SharedOnly } from "kanon-client/opentelemetry";
import { relay } from "kanon-client/relay";
import { Reports } from "kanon-client/reports";

const options: Options = { client: "me", auth: async () => "Bearer token", onDrop: (error, join) => console.log(error, join.type) };
const kanon = new Client("https://kanon.example", options);
export const hidden = new Client("https://kanon.example", { through: relay("https://relay.example", { delay: (most) => most / 2 }) });
export async function nameless(store: Store, token: string): Promise<Client> {
  const through = relay("https://relay.example");
  const me = new Anonymous({ store, spread: 60_000 });
  await me.enrol("https://kanon.example", { auth: async () => `Bearer ${token}`, through, recovery: recoveryCode() });
  return new Client("https://kanon.example", { anonymous: me, through });
}
const type: Type = await kanon.type("terms");
const shared: Set<string> = await kanon.isShared(type.type, ["a value"]);
const listed: Released = await kanon.released("searches");
const looked: Set<string> = await kanon.isShared("searches", listed.values.map(({ value }) => value), { private: "all" });
const id: SetId = await valueId("a value");
const known: boolean | undefined = kanon.known("terms", id);
export const processor = (exporter: SpanExporter) => new BatchSpanProcessor(new SharedOnly(exporter, kanon, { term: "terms" }, ["page"]));
export const fits: boolean = await new Reports("https://kanon.example", { origin: "https://report.example" }).contribute("a", 1);
export function enrolled(key: Uint8Array, response: Uint8Array): Credential {
  const context = credentialContext("kanon.example", 1);
  return Secrets.random().request(context, context).finish(new PublicKey(key), response);
}
export const present = (credential: Credential): Uint8Array => credential.present(tagContext("kanon.example", "terms", new Uint8Array(32)), new Uint8Array(0));
export { known, looked, shared };

// @ts-expect-error a value is a text, bytes or an id
await kanon.isShared("terms", [7]);
// @ts-expect-error a look-up is private in these ways only
await kanon.isShared("terms", ["a value"], { private: "some" });
// @ts-expect-error there is no such option
new Client("https://kanon.example", { clinet: "me" });
// @ts-expect-error reports need an origin
new Reports("https://kanon.example", {});
// @ts-expect-error a relay has no such option
relay("https://relay.example", { delya: () => 0 });
// @ts-expect-error an account has a key or token
await new Anonymous().enrol("https://kanon.example", {});
// @ts-expect-error secrets are bytes
new Secrets("secrets");
