// One call to the server: signaling, the data channel, keep-alive and statistics. Knows nothing of the page.

import { release } from "./microphone.js";
import { CHANNEL, decode, encode } from "./protocol.js";

const READY_WITHIN_MS = 10_000;
const SILENT_SERVER_MS = 5_000;
const EVERY_MS = 1_000;
const TOTALS = [
  "jitterBufferDelay", "jitterBufferEmittedCount", "concealedSamples", "silentConcealedSamples", "totalSamplesReceived",
  "packetsLost", "jitter",
];

/**
 * Why a call could not be made or ended. `code` names the texts of what happened and what to do: problem.CODE. `values`
 * go into them; `said` are the server's own words, and `again` the seconds after which it wants to be asked again.
 */
export class CallError extends Error {
  constructor(code, { said = "", again = null, ...values } = {}) {
    super(said || code);
    Object.assign(this, { code, said, again, values });
  }

  get needsToken() {
    return this.code === "token";
  }

  /** Whether there was a call, which would come back with the server. */
  get comesBack() {
    return this.code === "ended" || this.code === "gone";
  }
}

/**
 * Events: "message" (detail: one decoded server message), "stats" (detail: fields of the stats message),
 * "end" (detail: CallError, or null after hangUp). `track` is there before the call is connected, so that play() can
 * be called inside the click that starts it.
 */
export class Call extends EventTarget {
  #peer = new RTCPeerConnection({ iceServers: [] });
  #channel = this.#peer.createDataChannel(CHANNEL);
  #receiver;
  #sender;
  #microphone;
  #abort = new AbortController();
  #ready = Promise.withResolvers();
  #over = false;
  #path = null;
  #token;
  #timer;
  #pongAt;

  /** `microphone`: a MediaStream of the user's voice, which ends with the call; or null, to listen only. */
  constructor(token, microphone = null) {
    super();
    this.#token = token;
    this.#microphone = microphone;
    const [track] = microphone?.getAudioTracks() ?? [];
    const direction = track ? "sendrecv" : "recvonly";
    ({ receiver: this.#receiver, sender: this.#sender } = this.#peer.addTransceiver(track ?? "audio", { direction }));
    this.#ready.promise.catch(() => {}); // connect() reports it; a call that ends before must not be "unhandled"
    this.#channel.onmessage = ({ data }) => this.#receive(data);
    this.#channel.onclose = () => {
      this.#path = null; // the server has no such call any more
      this.#end(new CallError("ended"));
    };
    this.#peer.onconnectionstatechange = () => {
      if (this.#peer.connectionState === "failed") this.#end(new CallError(this.#pongAt ? "gone" : "unreachable"));
    };
  }

  get track() {
    return this.#receiver.track;
  }

  /** Resolves once the server has introduced itself. Rejects with CallError. */
  async connect() {
    const late = setTimeout(() => this.#end(new CallError(this.#path ? "unreachable" : "unanswered")), READY_WITHIN_MS);
    try {
      await this.#peer.setLocalDescription(); // no waiting for candidates: the server learns ours from our packets
      const { type, sdp } = this.#peer.localDescription;
      const [body, headers] = [JSON.stringify({ type, sdp }), { "Content-Type": "application/json" }];
      const answer = await (await this.fetch("offer", { method: "POST", body, headers })).json();
      this.#path = `calls/${encodeURIComponent(answer.id)}`;
      if (this.#over) this.#tellServer(); // hung up while it was being answered
      else await this.#peer.setRemoteDescription({ type: answer.type, sdp: answer.sdp });
      await this.#ready.promise;
      this.#pongAt = performance.now();
      this.#tick(); // at once: from its first ping on, the server notices sooner that a page has gone
      this.#timer = setInterval(() => this.#tick(), EVERY_MS);
    } catch (error) {
      this.#end(error instanceof CallError ? error : new CallError("strange", { said: error.message }));
      await this.#ready.promise; // the first reason counts
    } finally {
      clearTimeout(late);
    }
  }

  send(type, fields) {
    if (this.#channel.readyState === "open") this.#channel.send(encode(type, fields));
  }

  /** Another microphone; it ends with the call at once, for replaceTrack may never settle then. */
  async replaceMicrophone(stream) {
    release(this.#microphone);
    this.#microphone = stream;
    await this.#sender.replaceTrack(stream.getAudioTracks()[0]).catch((e) => this.#over || Promise.reject(e));
  }

  /** Also right for a page that is going away: the request outlives it. */
  hangUp() {
    this.#end(null);
  }

  /** Asks the server for whatever else it serves, while the call lasts. Rejects with CallError. */
  async fetch(path, { headers, ...how } = {}) {
    let response;
    try {
      headers = { ...headers, ...this.#authorization() };
      response = await fetch(path, { ...how, headers, signal: this.#abort.signal });
    } catch {
      throw new CallError("unanswered");
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }

  #authorization() {
    return this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
  }

  #receive(data) {
    const message = decode(data);
    if (message?.type === "session.created") this.#ready.resolve();
    if (message?.type === "pong") this.#pongAt = performance.now();
    if (message) this.dispatchEvent(new CustomEvent("message", { detail: message }));
  }

  async #tick() {
    if (performance.now() - this.#pongAt > SILENT_SERVER_MS)
      return this.#end(new CallError("gone"));
    this.send("ping", { t: performance.now() });
    const stats = listenerStats(await this.#peer.getStats());
    if (this.#over) return;
    this.send("stats", stats);
    this.dispatchEvent(new CustomEvent("stats", { detail: stats }));
  }

  #end(reason) {
    if (this.#over) return;
    this.#over = true;
    clearInterval(this.#timer);
    this.#abort.abort();
    release(this.#microphone);
    this.#tellServer().finally(() => this.#peer.close()); // closed first, the server would find no call to delete
    this.#ready.reject(reason ?? new CallError("ended"));
    this.dispatchEvent(new CustomEvent("end", { detail: reason }));
  }

  async #tellServer() {
    if (!this.#path) return;
    const request = { method: "DELETE", headers: this.#authorization(), keepalive: true, signal: AbortSignal.timeout(2_000) };
    await fetch(this.#path, request).catch(() => {}); // a server that is gone needs no telling
  }
}

/** The protocol's stats, from an RTCStatsReport (https://www.w3.org/TR/webrtc-stats/): totals since the call began. */
function listenerStats(report) {
  const all = [...report.values()];
  const audio = all.find((entry) => entry.type === "inbound-rtp" && entry.kind === "audio");
  const transport = all.find((entry) => entry.type === "transport");
  const pair = report.get(transport?.selectedCandidatePairId) ?? all.find((entry) => entry.nominated);
  const totals = TOTALS.map((name) => [name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), audio?.[name]]);
  return { ...Object.fromEntries(totals), round_trip_time: pair?.currentRoundTripTime };
}

async function refusal(response) {
  const said = await reasonOf(response);
  const again = response.headers.get("Retry-After");
  switch (response.status) {
    case 401:
      return new CallError("token");
    case 403:
    case 421:
      return new CallError("address", { detail: said });
    case 429: // too many requests
    case 503: // no line, no voice, or about to end: the server says which
      return new CallError("busy", { said, again: /^\d+$/.test(again) ? Number(again) : null });
    default:
      return new CallError("refused", { said, status: response.status });
  }
}

/** What the server says about an error: `{error: {message}}`, `{error}`, `{message}`, or plain text. */
async function reasonOf(response) {
  const text = await response.text().catch(() => "");
  try {
    const body = JSON.parse(text);
    return String(body.error?.message ?? body.error ?? body.message ?? "");
  } catch {
    return text.length < 300 && !text.includes("<") ? text : ""; // a proxy answers with a page of its own
  }
}
