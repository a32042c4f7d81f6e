// Runs Perfetto's trace processor, as its viewer does, on requests from standard input; replies go to standard output.
//
//     node perfetto_engine.js DIRECTORY      the directory with engine_bundle.js and trace_processor.wasm
//
// Each request and each reply is preceded by its length in four bytes, the lowest first. Requests and replies are
// messages TraceProcessorRpcStream of perfetto/trace_processor.proto.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const directory = process.argv[2];
const requests = split(fs.readFileSync(0));

function split(bytes) {
  const found = [];
  for (let at = 0; at < bytes.length; ) {
    const length = bytes.readUInt32LE(at);
    found.push(new Uint8Array(bytes.subarray(at + 4, at + 4 + length)));
    at += 4 + length;
  }
  return found;
}

function reply(bytes) {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(bytes.length);
  fs.writeSync(1, Buffer.concat([length, Buffer.from(bytes)]));
}

// What a web worker asks its files by.
class Request {
  open(method, url) {
    this.file = path.join(directory, path.basename(url));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
    this.status = 200;
  }
}

// The engine expects to be in a web worker, with its files beside it.
const port = { postMessage: reply, onmessage: null };
const worker = {
  console: { log: console.error, warn: console.error, error: console.error },
  location: { href: "file:///engine_bundle.js" },
  importScripts: () => {},
  WorkerGlobalScope: function () {},
  XMLHttpRequest: Request,
  setTimeout, clearTimeout, performance, TextDecoder, TextEncoder, URL, Uint8Array, crypto,
};
worker.self = worker;
vm.createContext(worker);
try {
  vm.runInContext(fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8"), worker);
} catch (error) {
  console.error(String(error)); // without the source, which is one line of 150 kB
  process.exit(1);
}
worker.onmessage({ data: port });

// Its module is there at once; what follows from that happens before the next timer.
setTimeout(() => requests.forEach((request) => port.onmessage({ data: request })), 0);
