import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { bytesOf, joined, type Bytes } from "./bytes.js";
import { CHACHA20_POLY1305, sender } from "./hpke.js";
import { encode, type Contribution } from "./payload.js";
import { base64 } from "./values.js";

export interface PublicKey {
  id: string;
  /** 32 bytes in base64. */
  key: string;
}

/** The body of a report, encrypted to one of the keys. `end` is its scheduled time, in milliseconds since 1970. */
export async function encrypted(pairs: Contribution[], keys: PublicKey[], origin: string, end: number): Promise<string> {
  const { id, key } = keys[crypto.getRandomValues(new Uint32Array(1))[0]! % keys.length]!;
  const shared_info = JSON.stringify({
    api: "kanon",
    report_id: crypto.randomUUID(),
    reporting_origin: origin,
    scheduled_report_time: String(Math.floor(end / 1000)),
    version: "1.0",
  });
  const raw = Uint8Array.from(atob(key), (character) => character.charCodeAt(0));
  const payload = base64(await seal(encode(pairs), raw, `aggregation_service${shared_info}`));
  return JSON.stringify({ shared_info, aggregation_service_payloads: [{ payload, key_id: id }] });
}

/** Encrypt to a public key of 32 bytes: the encapsulated key, then the ciphertext. `ephemeral` is for test vectors. */
export async function seal(cleartext: Uint8Array, key: Uint8Array, info: string, ephemeral?: CryptoKeyPair): Promise<Bytes> {
  const context = await sender(CHACHA20_POLY1305, key, bytesOf(info), ephemeral);
  // WebCrypto has all of it but this cipher.
  return joined(context.encapsulated, chacha20poly1305(context.key, context.nonce).encrypt(cleartext));
}
