// The connection to the node: one WebSocket, which is opened again when it ends, and what goes over it.

const LONGEST_WAIT = 15_000;
/** The most requests that may be under way. One more fails at once. */
const MOST_PENDING = 256;
/** The time without any message after which the connection counts as silent, and as lost. */
const SILENT = 5_000, LOST = 30_000;
const TOKEN = "presim.token";

/** An error that the node has answered. */
export class NodeError extends Error {
  constructor({ code, message, data }) {
    super(message);
    Object.assign(this, { code, data });
  }
}

export class NodeConnection extends EventTarget {
  /** One of `connecting`, `open`, `closed` and `locked` (a token is needed). */
  state = "connecting";
  /** Why the connection is not open, in words. */
  reason = "";
  #socket = null;
  #next = 1;
  #pending = new Map();
  #subscriptions = new Set();
  #byId = new Map();
  #tries = 0;
  #heard = 0;

  /** The addresses of the node, as clients name them. */
  urls = (() => {
    const base = new URL(".", location.href);
    const http = base.href.split(/[?#]/)[0].replace(/\/$/, "");
    return { http, ws: http.replace(/^http/, "ws") };
  })();

  get token() {
    return sessionStorage.getItem(TOKEN);
  }

  /** Takes a token for this tab, and connects with it. */
  unlock(token) {
    sessionStorage.setItem(TOKEN, token);
    this.#tries = 0;
    this.open();
  }

  /** Asks for a token. */
  lock(reason) {
    this.#become("locked", reason);
  }

  open() {
    this.#become("connecting", this.reason);
    const protocols = ["presim"];
    if (this.token) protocols.push(`presim.token.${base64url(this.token)}`);
    const socket = new WebSocket(`${this.urls.ws}/`, protocols);
    this.#socket = socket;
    socket.onopen = () => {
      this.#tries = 0;
      this.#heard = performance.now();
      this.#become("open", "");
      for (const one of this.#subscriptions) this.#begin(one);
    };
    socket.onmessage = ({ data }) => {
      this.#heard = performance.now();
      const message = JSON.parse(data);
      for (const one of Array.isArray(message) ? message : [message]) this.#take(one);
    };
    socket.onclose = ({ reason }) => {
      if (this.#socket === socket) this.#ended(reason);
    };
  }

  /** Returns for how long nothing has come, in milliseconds, if that is too long. Ends a connection that is lost. */
  silence() {
    if (this.state !== "open") return 0;
    const silent = performance.now() - this.#heard;
    if (silent > LOST) {
      const socket = this.#socket;
      this.#socket = null;
      socket.close();
      this.#ended("the node has not answered for 30 seconds");
    }
    return silent > SILENT ? silent : 0;
  }

  /** Calls a method. Rejects with a `NodeError`, or an `Error` if there is no answer. */
  call(method, params = []) {
    if (this.state !== "open") return Promise.reject(new Error("there is no connection to the node"));
    if (this.#pending.size >= MOST_PENDING) return Promise.reject(new Error(`${MOST_PENDING} requests are under way already`));
    const id = this.#next++;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#pending.delete(id);
        reject(new Error(`${method}: no answer within a minute`));
      }, 60_000);
      this.#pending.set(id, { resolve, reject, timer });
      this.#socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    });
  }

  /** Subscribes for as long as the result is not called, over all connections. */
  subscribe(params, tell) {
    const one = { params, tell, id: null };
    this.#subscriptions.add(one);
    if (this.state === "open") this.#begin(one);
    return () => {
      this.#subscriptions.delete(one);
      if (one.id === null) return;
      this.#byId.delete(one.id);
      if (this.state === "open") this.call("eth_unsubscribe", [one.id]).catch(() => {});
    };
  }

  async #begin(one) {
    one.id = null;
    const id = await this.call("eth_subscribe", one.params).catch(() => null);
    if (id === null) return;
    // The view may have been left in the meantime.
    if (!this.#subscriptions.has(one)) {
      this.call("eth_unsubscribe", [id]).catch(() => {});
      return;
    }
    one.id = id;
    this.#byId.set(id, one);
  }

  #take({ id, method, params, result, error }) {
    if (method === "eth_subscription") {
      this.#byId.get(params.subscription)?.tell(params.result);
      return;
    }
    const waiting = this.#pending.get(id);
    if (!waiting) {
      // An error without an id is the node's reason to close.
      if (error) this.reason = error.message;
      return;
    }
    this.#pending.delete(id);
    clearTimeout(waiting.timer);
    if (error) waiting.reject(new NodeError(error));
    else waiting.resolve(result);
  }

  async #ended(reason) {
    this.#byId.clear();
    const lost = new Error("the connection to the node has ended");
    for (const { reject, timer } of this.#pending.values()) {
      clearTimeout(timer);
      reject(lost);
    }
    this.#pending.clear();
    const wasOpen = this.state === "open";
    this.#become("closed", reason || this.reason || "the node does not answer");
    // A browser does not tell a page why an upgrade was refused, so the page asks over HTTP.
    if (!wasOpen && (await this.#isLocked())) return;
    const wait = Math.min(LONGEST_WAIT, 500 * 2 ** this.#tries++) * (0.75 + Math.random() / 2);
    this.retryAt = performance.now() + wait;
    setTimeout(() => { if (this.state === "closed") this.open(); }, wait);
  }

  /** Asks why there is no connection. Returns whether a token is needed. */
  async #isLocked() {
    const headers = { "content-type": "application/json" };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    const body = '{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}';
    try {
      const answer = await fetch(`${this.urls.http}/`, { method: "POST", headers, body, signal: AbortSignal.timeout(3_000) });
      const { error } = await answer.json();
      if (answer.status === 401) {
        this.lock(this.token ? "The node does not know this token." : "");
        return true;
      }
      if (error) this.#become("closed", error.message);
    } catch {
      this.#become("closed", "the node does not answer");
    }
    return false;
  }

  #become(state, reason) {
    this.state = state;
    this.reason = reason;
    this.dispatchEvent(new Event("state"));
  }
}

function base64url(text) {
  const binary = String.fromCharCode(...new TextEncoder().encode(text));
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
