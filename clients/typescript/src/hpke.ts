/** HPKE (RFC 9180), base mode, one message: DHKEM(X25519, HKDF-SHA256) and HKDF-SHA256, without the cipher. */
import { bytesOf, joined, type Bytes } from "./bytes.js";

/** The numbers of the ciphers. */
export const AES_256_GCM = 2;
export const CHACHA20_POLY1305 = 3;

/** What the sender of one message knows. */
export interface Context {
  /** 32 bytes to send before the ciphertext. */
  encapsulated: Bytes;
  /** The key and the nonce of the cipher. */
  key: Bytes;
  nonce: Bytes;
  /** A secret of so many bytes, at most 32, that only both sides know. */
  exported: (label: string, length: number) => Promise<Bytes>;
}

const KEM = joined(bytesOf("KEM"), [0x00, 0x20]);
const NOTHING = new Uint8Array(0);
/** HMAC pads its key with zeros: this key is the empty one, which WebCrypto refuses. */
const NO_SALT = new Uint8Array(32);

/** Begin a message to a public key of 32 bytes. `ephemeral` is for test vectors. */
export async function sender(cipher: number, key: Uint8Array, info: Uint8Array, ephemeral?: CryptoKeyPair): Promise<Context> {
  const suite = joined(bytesOf("HPKE"), [0x00, 0x20, 0x00, 0x01, 0x00, cipher]);
  const pair = ephemeral ?? ((await crypto.subtle.generateKey("X25519", false, ["deriveBits"])) as CryptoKeyPair);
  const encapsulated = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
  const theirs = await crypto.subtle.importKey("raw", key as Bytes, "X25519", false, []);
  const dh = new Uint8Array(await crypto.subtle.deriveBits({ name: "X25519", public: theirs }, pair.privateKey, 256));
  const prk = await labelled(KEM, NO_SALT, "eae_prk", dh);
  const shared = await expand(KEM, prk, "shared_secret", joined(encapsulated, key), 32);
  const ids = await labelled(suite, NO_SALT, "psk_id_hash", NOTHING);
  const context = joined([0x00], ids, await labelled(suite, NO_SALT, "info_hash", info));
  const secret = await labelled(suite, shared, "secret", NOTHING);
  const exporter = await expand(suite, secret, "exp", context, 32);
  return {
    encapsulated,
    key: await expand(suite, secret, "key", context, 32),
    nonce: await expand(suite, secret, "base_nonce", context, 12),
    exported: (label, length) => expand(suite, exporter, "sec", bytesOf(label), length),
  };
}

/** HMAC with SHA-256; with a salt as its key it is HKDF-Extract. */
export async function hmac(key: Uint8Array, data: Uint8Array): Promise<Bytes> {
  const imported = await crypto.subtle.importKey("raw", key as Bytes, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, data as Bytes));
}

function labelled(suite: Bytes, salt: Bytes, label: string, input: Uint8Array): Promise<Bytes> {
  return hmac(salt, joined(bytesOf("HPKE-v1"), suite, bytesOf(label), input));
}

async function expand(suite: Bytes, key: Bytes, label: string, info: Uint8Array, length: number): Promise<Bytes> {
  const block = await hmac(key, joined([0, length], bytesOf("HPKE-v1"), suite, bytesOf(label), info, [1]));
  return block.slice(0, length);
}
