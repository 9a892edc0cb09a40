/**
 * HPKE (RFC 9180), base mode, one message: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305.
 *
 * WebCrypto has all of it but the cipher.
 */
import { chacha20poly1305 } from "@noble/ciphers/chacha.js";

type Bytes = Uint8Array<ArrayBuffer>;

const text = (value: string): Bytes => new TextEncoder().encode(value) as Bytes;
const KEM = join(text("KEM"), [0x00, 0x20]);
const SUITE = join(text("HPKE"), [0x00, 0x20, 0x00, 0x01, 0x00, 0x03]);
const NOTHING = new Uint8Array(0);
/** HMAC pads its key with zeros: this key is the empty one, which WebCrypto refuses. */
const NO_SALT = new Uint8Array(32);

/** Encrypt to a public key of 32 bytes: the encapsulated key, then the ciphertext. `ephemeral` is for test vectors. */
export async function seal(cleartext: Uint8Array, key: Uint8Array, info: string, ephemeral?: CryptoKeyPair): Promise<Bytes> {
  const pair = ephemeral ?? ((await crypto.subtle.generateKey("X25519", false, ["deriveBits"])) as CryptoKeyPair);
  const encapsulated = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  const theirs = await crypto.subtle.importKey("raw", key as Bytes, "X25519", false, []);
  const dh = new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: theirs }, pair.privateKey, 256));
  const prk = await extract(KEM, NO_SALT, "eae_prk", dh);
  const shared = await expand(KEM, prk, "shared_secret", join(encapsulated, key), 32);
  const ids = await extract(SUITE, NO_SALT, "psk_id_hash", NOTHING);
  const context = join([0x00], ids, await extract(SUITE, NO_SALT, "info_hash", text(info)));
  const secret = await extract(SUITE, shared, "secret", NOTHING);
  const secretKey = await expand(SUITE, secret, "key", context, 32);
  const nonce = await expand(SUITE, secret, "base_nonce", context, 12);
  return join(encapsulated, chacha20poly1305(secretKey, nonce).encrypt(cleartext));
}

function extract(suite: Bytes, salt: Bytes, label: string, input: Uint8Array): Promise<Bytes> {
  return hmac(salt, join(text("HPKE-v1"), suite, text(label), input));
}

async function expand(suite: Bytes, key: Bytes, label: string, info: Uint8Array, length: number): Promise<Bytes> {
  const block = await hmac(key, join([0, length], text("HPKE-v1"), suite, text(label), info, [1]));
  return block.slice(0, length);
}

async function hmac(key: Bytes, data: Bytes): Promise<Bytes> {
  const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, data));
}

function join(...parts: ArrayLike<number>[]): Bytes {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
