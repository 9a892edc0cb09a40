// Binary HTTP of another library, bhttp-js. For each line {request, response, encoded: [hex, hex]} of the input a line
// {encoded: [hex, hex], request, response}: request and response as it writes them, and as it reads those of `encoded`.
import { createInterface } from "node:readline";
import { BHttpDecoder, BHttpEncoder } from "bhttp-js";

const hex = (data) => Buffer.from(data).toString("hex");
const unhex = (text) => new Uint8Array(Buffer.from(text, "hex"));
const shown = async (message) => ({ headers: [...message.headers], body: hex(await message.arrayBuffer()) });

for await (const line of createInterface({ input: process.stdin })) {
  const { request, response, encoded } = JSON.parse(line);
  const [encoder, decoder] = [new BHttpEncoder(), new BHttpDecoder()];
  const sent = new Request(`https://kanon.example${request.path}`, { ...request, body: unhex(request.body) });
  const answered = new Response(unhex(response.body), response);
  const [asked, told] = [decoder.decodeRequest(unhex(encoded[0])), decoder.decodeResponse(unhex(encoded[1]))];
  const { pathname } = new URL(asked.url);
  console.log(
    JSON.stringify({
      encoded: [hex(await encoder.encodeRequest(sent)), hex(await encoder.encodeResponse(answered))],
      request: { method: asked.method, path: pathname, ...(await shown(asked)) },
      response: { status: told.status, ...(await shown(told)) },
    }),
  );
}
