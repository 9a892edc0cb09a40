import { bytesOf } from "./bytes.js";
import { EnrolmentError } from "./errors.js";

/** What a passkey derives the secret from. It is public, and the same at each service and on all devices. */
const INPUT = bytesOf("kanon recovery 1");
const ES256 = -7;
const RS256 = -257;

/**
 * Make a passkey for the page's domain, whose secret encrypts what the person's other devices get: for `enrol`.
 *
 * The browser asks the person, who sees this name. Undefined if it cannot derive secrets from passkeys (the extension
 * `prf` of WebAuthn): use a recovery code. What the browser throws, such as NotAllowedError, is thrown.
 */
export async function newPasskey(name: string): Promise<CryptoKey | undefined> {
  if (!(await derives())) return undefined;
  const made = await navigator.credentials.create({
    publicKey: {
      rp: { name },
      user: { id: random(), name, displayName: name },
      challenge: random(),
      pubKeyCredParams: [ES256, RS256].map((alg) => ({ type: "public-key", alg })),
      authenticatorSelection: { residentKey: "required", userVerification: "required" },
      extensions: asked(),
    },
  });
  const { prf } = (made as PublicKeyCredential).getClientExtensionResults();
  if (!prf?.enabled && !prf?.results) return undefined;
  return prf.results ? await secretOf(prf.results) : await passkey();
}

/** The secret of a passkey that `newPasskey` has made, here or on a device that shares it. Otherwise the same. */
export async function passkey(): Promise<CryptoKey | undefined> {
  if (!(await derives())) return undefined;
  const shown = await navigator.credentials.get({
    publicKey: { challenge: random(), userVerification: "required", extensions: asked() },
  });
  const { prf } = (shown as PublicKeyCredential).getClientExtensionResults();
  return prf?.results && (await secretOf(prf.results));
}

/** Whether the browser may derive secrets. One that cannot say is asked for one. */
async function derives(): Promise<boolean> {
  if (!globalThis.PublicKeyCredential) return false;
  const known = await PublicKeyCredential.getClientCapabilities?.().catch(() => undefined);
  return known?.["extension:prf"] !== false;
}

async function secretOf({ first }: AuthenticationExtensionsPRFValues): Promise<CryptoKey> {
  if (first.byteLength !== 32) throw new EnrolmentError("the passkey gave no secret of 32 bytes: use a recovery code");
  return await crypto.subtle.importKey("raw", first, "HKDF", false, ["deriveKey"]);
}

const asked = (): AuthenticationExtensionsClientInputs => ({ prf: { eval: { first: INPUT } } });
const random = () => crypto.getRandomValues(new Uint8Array(32));
