// Calls the gateway of a service with libraries of others: binary HTTP of bhttp-js, HPKE of @hpke/core.
// node use_gateway.js: for each line {url, request: {method, path, headers, body}} of the input a line {status, headers, body}.
import { createInterface } from "node:readline";
import { Aes256Gcm, CipherSuite, DhkemX25519HkdfSha256, HkdfSha256 } from "@hpke/core";
import { BHttpDecoder, BHttpEncoder } from "bhttp-js";

const suite = new CipherSuite({ kem: new DhkemX25519HkdfSha256(), kdf: new HkdfSha256(), aead: new Aes256Gcm() });
const bytes = (text) => new TextEncoder().encode(text);
const joined = (...parts) => Uint8Array.from(parts.flatMap((part) => [...new Uint8Array(part)]));
const derived = async (secret, salt, info, bits) => {
  const key = await crypto.subtle.importKey("raw", secret, "HKDF", false, ["deriveBits"]);
  return crypto.subtle.deriveBits({ name: "HKDF", hash: "SHA-256", salt, info: bytes(info) }, key, bits);
};

async function call(url, { method, path, headers, body }) {
  const config = new Uint8Array(await (await fetch(`${url}/v1/proxy/keys`)).arrayBuffer());
  const header = joined(config.slice(0, 3), config.slice(37, 41));
  const recipientPublicKey = await suite.kem.deserializePublicKey(config.slice(3, 35));
  const sender = await suite.createSenderContext({
    recipientPublicKey,
    info: joined(bytes("message/bhttp request"), [0], header),
  });
  const inner = new Request(`https://kanon.example${path}`, { method, headers, body });
  const sealed = await sender.seal(await new BHttpEncoder().encodeRequest(inner));
  const answer = await fetch(`${url}/v1/gateway`, {
    method: "POST",
    headers: { "Content-Type": "message/ohttp-req" },
    body: joined(header, sender.enc, sealed),
  });
  if (answer.status !== 200) throw new Error(`${answer.status} outside`);
  const response = new Uint8Array(await answer.arrayBuffer());
  const secret = await sender.export(bytes("message/bhttp response"), 32);
  const salt = joined(sender.enc, response.slice(0, 32));
  const key = await crypto.subtle.importKey("raw", await derived(secret, salt, "key", 256), "AES-GCM", false, ["decrypt"]);
  const iv = await derived(secret, salt, "nonce", 96);
  const opened = new Uint8Array(await crypto.subtle.decrypt({ name: "AES-GCM", iv }, key, response.slice(32)));
  const found = new BHttpDecoder().decodeResponse(opened);
  return { status: found.status, headers: Object.fromEntries(found.headers), body: await found.text() };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { url, request } = JSON.parse(line);
  console.log(JSON.stringify(await call(url, request)));
}
