// The page of `lightning-idc serve` without a server: images stay in the browser.
import * as ort from "./ort/ort.wasm.min.mjs";
import { Captioner, read } from "./captioner.mjs";

ort.env.wasm.numThreads = 1;  // more need headers that a plain file server does not send
ort.env.wasm.wasmPaths = new URL("ort/", import.meta.url).href;
let opened = null;

window.start({
  place: "samples/",
  samples: async () => (await fetch("samples/names.json")).json(),
  describe: async (before, after) => {
    opened ??= Captioner.open(ort, "model/").catch((error) => { opened = null; throw error; });
    return (await opened).describe(await read(before), await read(after));
  },
});
