// The page: what its buttons do and how a call's state reads. Knows nothing of WebRTC (call.js) or of samples (meter.js).

import { Call } from "./call.js";
import { Meter } from "./meter.js";

const element = (id) => document.getElementById(id);
const sound = element("sound");
const meter = new Meter(element("meter"));
const SHOWN = 5; // utterances in the list
const OVER = { end: "said", length: "too long, cut at", cancelled: "stopped at", failed: "failed at" };

let token = null;
let call = null;
let asking = false; // for the microphone
let listening = false; // the user has the turn
let phase = "idle"; // idle, connecting, ready
let voice = null; // session.created of the last call
let asked = 0;
let utterances = []; // of this call, newest first: {id, text, waited, state, detail, underruns, wait?}
let readings = {};
let last = null; // the stats before

// ---- the call -------------------------------------------------------------------------------------------------

/** Starts a call; `afterwards` runs once it is ready. Must be called inside a click: play() is. */
async function connect(afterwards = () => {}) {
  if (call || asking) return;
  meter.wake();
  let microphone = null;
  asking = true;
  try {
    if (element("microphone").checked) microphone = await openMicrophone();
  } finally {
    asking = false;
  }
  try {
    call = new Call(token, microphone);
  } catch (error) {
    for (const track of microphone?.getTracks() ?? []) track.stop();
    complain("This browser cannot make the call.", `Use a current browser, with WebRTC allowed. (${error.message})`);
    return;
  }
  const mine = call;
  mine.addEventListener("message", ({ detail }) => call === mine && receive(detail));
  mine.addEventListener("stats", ({ detail }) => call === mine && showDelay(detail));
  mine.addEventListener("end", ({ detail }) => call === mine && ended(detail));
  meter.wake();
  meter.listen(mine.track);
  sound.srcObject = new MediaStream([mine.track]);
  play();
  forget();
  phase = "connecting";
  render();
  try {
    await mine.connect();
  } catch (error) {
    if (error.needsToken) askForToken(afterwards);
    return; // "end" has said the rest
  }
  phase = "ready";
  render();
  afterwards();
}

/** The user's voice; null, with a word of why, where there is none: the call is then for listening only. */
async function openMicrophone() {
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: true, noiseSuppression: true } });
  } catch ({ name }) {
    const denied = name === "NotAllowedError";
    complain(
      denied ? "The microphone is not allowed here." : "There is no microphone.",
      `You can listen and type. ${denied ? "Allow it in the address bar and connect again." : "Plug one in and connect again."}`,
    );
    return null;
  }
}

function ended(reason) {
  call = null;
  listening = false;
  phase = "idle";
  sound.srcObject = null;
  meter.rest();
  element("refused").hidden = true;
  for (const utterance of pending()) settle(utterance, "over", "call ended");
  if (reason && (token || !reason.needsToken)) complain(reason.message, reason.advice);
  render();
}

function play() {
  element("refused").hidden = true;
  meter.wake();
  sound.play().catch(({ name }) => {
    element("refused").hidden = name !== "NotAllowedError" || !call; // AbortError: hung up before it could start
  });
}

function receive(message) {
  const utterance = utterances.find(({ id }) => id === message.id) ?? unasked(message);
  switch (message.type) {
    case "session.created":
      voice = message;
      break;
    case "speech.queued":
      Object.assign(utterance, { state: "waiting", detail: `waits ${about(message.wait_ms)}`, wait: message.wait_ms });
      break;
    case "speech.started":
      Object.assign(utterance, { state: "speaking", detail: "speaking" });
      if (!utterance.waited) readings.ttfa = message.ttfa_ms;
      break;
    case "speech.progress":
      Object.assign(readings, { heard: message.heard_ms, buffered: message.buffered_ms });
      utterance.underruns = message.underruns;
      break;
    case "speech.underrun":
      readings.heard = message.heard_ms;
      utterance.underruns = message.underruns;
      break;
    case "speech.paused":
      Object.assign(utterance, { detail: "paused" });
      break;
    case "speech.continued":
      Object.assign(utterance, { detail: "speaking" });
      break;
    case "turn.started":
      listening = true;
      break;
    case "turn.ended":
      listening = false;
      break;
    case "turn.text":
      utterances.unshift({ id: `t${++asked}`, text: message.text, state: "over", detail: "you", underruns: 0 });
      break;
    case "reply.text":
      utterances.unshift({ id: message.id, text: message.text, waited: true, state: "waiting", detail: "waiting", underruns: 0 });
      break;
    case "speech.stopped":
      Object.assign(readings, { heard: message.heard_ms, buffered: 0 });
      utterance.underruns = message.underruns ?? 0;
      settle(utterance, message.reason === "failed" ? "failed" : "over", endWords(message));
      break;
    case "error":
      settle(utterance, "failed", "not said");
      complain(message.message, adviceFor(message));
  }
  render();
}

/** An application may speak of its own accord. */
function unasked({ type, id }) {
  const utterance = { id, text: "(the server's own words)", underruns: 0 };
  if (type === "speech.queued" || type === "speech.started") utterances.unshift(utterance);
  return utterance;
}

function speak() {
  const text = element("text").value.trim();
  const waited = pending().length > 0;
  const utterance = { id: `u${++asked}`, text, waited, state: "waiting", detail: "waiting", underruns: 0 };
  try {
    call.send("speak", { id: utterance.id, text: utterance.text });
  } catch (error) {
    return complain("This text is too long for one message.", `Shorten it, or say it in parts. (${error.message})`);
  }
  element("problem").hidden = true;
  if (!waited)
    meter.timeToSound((elapsed) => {
      readings.firstSound = elapsed;
      render();
    });
  utterances.unshift(utterance);
  render();
}

/** What is typed as if it had been said: the agent answers. */
function say() {
  call.send("say", { text: element("text").value.trim() });
}

function stop() {
  call.send("stop"); // the server answers with a speech.stopped for each that is pending
}

const pending = () => utterances.filter(({ state }) => state === "waiting" || state === "speaking");
const settle = (utterance, state, detail) => Object.assign(utterance, { state, detail });

function forget() {
  utterances = [];
  readings = {};
  last = null;
  element("problem").hidden = true;
}

// ---- what is shown --------------------------------------------------------------------------------------------

function render() {
  const waiting = pending();
  const speaking = waiting.some(({ state }) => state === "speaking");
  const underruns = utterances.reduce((sum, each) => sum + each.underruns, 0);
  write("status", statusWords(waiting, speaking));
  element("status").dataset.phase = speaking ? "speaking" : phase;
  write("connect", { idle: "Connect", connecting: "Cancel", ready: "Hang up" }[phase]);
  write("speak", phase === "idle" ? "Connect and speak" : "Speak");
  element("speak").disabled = phase === "connecting";
  element("say").disabled = phase !== "ready";
  element("microphone").disabled = phase !== "idle";
  element("stop").disabled = !waiting.length;
  write("ttfa", milliseconds(readings.ttfa));
  write("first-sound", milliseconds(readings.firstSound));
  write("buffered", phase === "ready" ? milliseconds(readings.buffered ?? 0) : "–");
  write("heard", readings.heard === undefined ? "–" : seconds(readings.heard));
  write("underruns", phase === "ready" || utterances.length ? String(underruns) : "–");
  element("underruns").toggleAttribute("data-some", underruns > 0);
  write("delay", milliseconds(readings.delay));
  if (voice) introduce(voice);
  element("nothing-said").hidden = utterances.length > 0;
  element("utterances").replaceChildren(...utterances.slice(0, SHOWN).map(line));
  count();
}

function statusWords(waiting, speaking) {
  if (phase === "idle") return "Not connected";
  if (phase === "connecting") return "Connecting…";
  if (listening) return "Listening…";
  if (!waiting.length) return "Connected, ready to speak";
  const { wait } = waiting.at(-1); // of the one that is next, where it has to wait for other callers
  const next = wait === undefined ? "Making the first sound…" : `All voices are busy: ${about(wait)} to wait`;
  const more = waiting.length > 1 ? `, ${waiting.length - 1} more waiting` : "";
  return (speaking ? "Speaking" : next) + more;
}

const endWords = ({ reason, heard_ms: heard }) =>
  reason === "failed" && !heard ? "not said" : `${OVER[reason]} ${seconds(heard)}`;

function introduce({ voice: name, licence }) {
  const terms = document.createElement("small");
  terms.textContent = ` · licence ${licence}`;
  element("voice").replaceChildren(name, terms);
  element("restricted").hidden = !/non-?\s?commercial|\bnc\b|research/i.test(licence);
}

function line({ id, text, state, detail }) {
  const item = document.createElement("li");
  Object.assign(item.dataset, { id, state });
  for (const [name, words] of Object.entries({ text, state: detail })) {
    const part = item.appendChild(document.createElement("span"));
    part.className = name;
    part.textContent = words;
  }
  item.firstChild.title = text;
  return item;
}

/** Live regions speak at every change of their text, so it is only touched when it differs. */
function write(id, words) {
  if (element(id).textContent !== words) element(id).textContent = words;
}

function showDelay(stats) {
  const held = stats.jitter_buffer_delay - (last?.jitter_buffer_delay ?? 0);
  const emitted = stats.jitter_buffer_emitted_count - (last?.jitter_buffer_emitted_count ?? 0);
  last = stats;
  readings.delay = emitted > 0 ? (1000 * held) / emitted : undefined;
  render();
}

function count() {
  const most = voice?.max_text_chars;
  if (most) element("text").maxLength = most;
  write("count", most ? `${element("text").value.length} of ${most} characters` : "");
}

function complain(what, advice = "") {
  write("problem-what", sentence(what));
  write("problem-advice", advice);
  element("problem").hidden = false;
}

/** Beyond what the server's own message advises. */
function adviceFor({ code, retry_after_ms: wait }) {
  if (code === "engine_died") return "The engine is being started again: try again in a few seconds.";
  return wait === undefined ? "" : `Try again in ${about(wait)}.`;
}

/** The server's messages are written for logs, too. */
const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?…]$/.test(words) ? "" : ".");
const about = (wait) => `about ${Math.max(1, Math.ceil(wait / 1000))}\u00a0s`;

const milliseconds = (value) => (value === undefined ? "–" : `${Math.round(value)} ms`);
const seconds = (value) => `${(value / 1000).toFixed(1)} s`;

// ---- the token ------------------------------------------------------------------------------------------------

/** From the address's fragment, which no server sees; it is then removed from the address bar and the history. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  token = given;
  history.replaceState(null, "", location.pathname + location.search);
}

function askForToken(afterwards) {
  const form = element("token-form");
  form.hidden = false;
  element("token").focus();
  form.onsubmit = (event) => {
    event.preventDefault();
    token = element("token").value.trim();
    form.hidden = true;
    form.reset();
    connect(afterwards);
  };
}

// ---- the buttons ----------------------------------------------------------------------------------------------

element("connect").onclick = () => (call ? call.hangUp() : connect());
element("stop").onclick = stop;
element("say").onclick = say;
element("play").onclick = play;
element("problem-close").onclick = () => (element("problem").hidden = true);
element("text").oninput = count;
element("speak-form").onsubmit = (event) => {
  event.preventDefault();
  if (call) speak();
  else connect(speak);
};
element("text").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !element("speak").disabled)
    element("speak-form").requestSubmit();
};
document.onkeydown = ({ key }) => {
  if (key === "Escape" && !element("stop").disabled) stop();
};
addEventListener("hashchange", takeToken);
addEventListener("pagehide", () => call?.hangUp());
takeToken();
render();
