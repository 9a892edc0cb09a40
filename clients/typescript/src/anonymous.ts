/** What a client needs to join without a name: a relay between it and the service. */
export { KeysDifferError, relay, type RelayOptions } from "./relay.js";
