export { Client, type Join, type ListedValue, type Look, type Options, type Released, type Type, type Who } from "./client.js";
export type { Auth } from "./connection.js";
export { ApiError, DroppedError, NoAnswerError, RefusedError, UnknownTypeError } from "./errors.js";
export { bucketOf, SetId, valueId, type Value } from "./values.js";
