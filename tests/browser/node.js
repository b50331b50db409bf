// A presim in a process of its own, and a browser.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];

/** Opens a browser with a new profile. */
export const browse = () => chromium.launch({ executablePath: process.env.CHROMIUM, headless: true, args: FLAGS });

/** A node that runs until it is stopped. */
export class Node {
  /** What the node has logged, in parts. */
  log = [];

  /** Starts a node with these flags on a free port, or on a port that one had before. */
  static async start(flags = [], listen = "127.0.0.1:0") {
    const node = new Node();
    node.flags = flags;
    node.process = spawn(process.env.PRESIM, ["--listen", listen, ...flags], { stdio: ["ignore", "pipe", "pipe"] });
    node.process.stderr.on("data", (text) => { node.log.push(text); });
    for await (const line of createInterface({ input: node.process.stdout })) {
      node.address ??= / listens on http:\/\/([^\s/]+)/.exec(line)?.[1];
      if (line.startsWith("curl ")) break;
    }
    if (!node.address) throw new Error(`the node did not start with ${flags.join(" ")}: ${node.log.join("")}`);
    return node;
  }

  get url() {
    return `http://${this.address}/`;
  }

  get pid() {
    return this.process.pid;
  }

  signal(name) {
    this.process.kill(name);
  }

  async stop() {
    if (this.process.exitCode !== null || this.process.signalCode) return;
    const ended = once(this.process, "exit");
    this.process.kill("SIGKILL");
    await ended;
  }

  /** Calls a method over HTTP, and returns its result. */
  async result(method, ...params) {
    const answer = await this.post(method, params);
    if (answer.error) throw new Error(`${method}: ${JSON.stringify(answer.error)}`);
    return answer.result;
  }

  async post(method, params, headers = {}) {
    const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method, params });
    const answer = await fetch(this.url, { method: "POST", headers: { "content-type": "application/json", ...headers }, body });
    return answer.json();
  }
}

/** Waits until a check holds, and returns its value. */
export async function until(what, check, seconds = 120) {
  const end = performance.now() + 1000 * seconds;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (performance.now() > end) throw new Error(`not within ${seconds} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
