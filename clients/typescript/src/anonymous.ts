export { credentialContext, session, tagContext, type Bound } from "./contexts.js";
export { Credential, CredentialRequest, PublicKey, Secrets } from "./credentials.js";
export { CredentialError } from "./errors.js";
