// A client of reports that shares no code with kanon's: node report.mjs URL VALUE AMOUNT. Its libraries:
// npm install @hpke/core@1.9.0 @hpke/chacha20poly1305@1.8.0 cbor-x@1.6.8
import { Chacha20Poly1305 } from "@hpke/chacha20poly1305";
import { CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";
import { Encoder } from "cbor-x";
import { createHash, randomInt, randomUUID } from "node:crypto";

const [url, value, amount] = process.argv.slice(2);
const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Chacha20Poly1305() });
const cbor = new Encoder({ tagUint8Array: false, useRecords: false, variableMapSize: true }); // no tags, no records

const bytes = (number, size) => new Uint8Array(Buffer.from(BigInt(number).toString(16).padStart(2 * size, "0"), "hex"));
const pair = (bucket, sum) => ({ id: bytes(0, 1), value: bytes(sum, 4), bucket: bytes(bucket, 16) });
const key = createHash("sha256").update(value).digest("hex").slice(0, 32);
const data = [pair(`0x${key}`, amount), ...Array.from({ length: 19 }, () => pair(0, 0))];

const { keys } = await (await fetch(`${url}/.well-known/aggregation-service/v1/public-keys`)).json();
const chosen = keys[randomInt(keys.length)];
const shared_info = JSON.stringify({
  api: "kanon",
  report_id: randomUUID(),
  reporting_origin: "https://report.example",
  scheduled_report_time: String(Math.floor(Date.now() / 1000)),
  version: "1.0",
});
const recipientPublicKey = await suite.kem.deserializePublicKey(Buffer.from(chosen.key, "base64"));
const info = Buffer.from(`aggregation_service${shared_info}`);
const sender = await suite.createSenderContext({ recipientPublicKey, info });
const sealed = await sender.seal(cbor.encode({ data, operation: "histogram" }));
const payload = Buffer.concat([Buffer.from(sender.enc), Buffer.from(sealed)]).toString("base64");
const answer = await fetch(`${url}/v1/reports`, {
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify({ shared_info, aggregation_service_payloads: [{ payload, key_id: chosen.id }] }),
});
console.log(answer.status, await answer.text());
