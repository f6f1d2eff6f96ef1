// The page: what its buttons do and how a call's state reads. Knows nothing of WebRTC (call.js) or of samples (meter.js).

import { Call } from "./call.js";
import { Demo } from "./demo.js";
import { example } from "./example.js";
import { Meter, wake } from "./meter.js";
import { Microphone, devices, release } from "./microphone.js";
import { Line } from "./plots.js";
import { LANGUAGES, choose, fill, known, language, number, put, tell } from "./texts.js";
import { Timeline } from "./timeline.js";
import { Transcript, spell } from "./transcript.js";
import { Waterfall } from "./waterfall.js";

const EXAMPLE = // English, as the embedded voice is
  "Hello! I am a small voice, and every frame of this sentence was made while you listened.";
const INTERRUPTED_MS = 2_500; // how long the word stands, unless something happens before
const RETRY_MS = [500, 1_000, 2_000, 3_000]; // and so on
const SUMMARY_MS = 2_000;

const element = (id) => document.getElementById(id);
const sound = element("sound");
const agentMeter = new Meter(element("level-agent"), element("connect"));
const yourMeter = new Meter(element("level-you"));
const microphone = new Microphone();
const transcript = new Transcript(element("utterances"));
const timeline = new Timeline(element("timeline"));
const waterfall = new Waterfall(element("waterfall"));
const lines = {
  delay: new Line(element("line-delay"), "stats.delay", "ms", 100),
  concealed: new Line(element("line-concealed"), "stats.concealed", "ms", 40),
  trip: new Line(element("line-trip"), "stats.trip", "ms", 20),
  lost: new Line(element("line-lost"), "stats.lost", "", 5),
};
const demo = new Demo({
  send: (fields) => call?.send("demo", fields),
  speak: (text) => speakText(text),
  stop: () => call?.send("stop"),
  measure: (then) => agentMeter.timeToSilence(then),
  speaking: () => speaking(),
  pending: () => transcript.pending.length > 0,
  download,
});

let token = null;
let call = null;
let asking = false; // for the microphone
let unwanted = false; // the call that waits for the answer
let phase = "idle"; // idle, connecting, ready
let back = null; // {timer, tries}: while the page waits for its server to come back
let turn = null; // hearing, thinking, paused, or null
let interrupted = null; // {ms, timer}: fallen silent a moment ago
let voice = null; // session.created of the last call
const clones = new Map(); // voices of recordings: id, name of the file
let cloning = false;
let settled = false; // the user has chosen who speaks, or how
let asked = 0;
let readings = {};
let last = null; // the stats before
let problem = null; // {what, advice}: what gives their words
let hint = null; // the key of its text
let touched = false; // the user has chosen whether to use the microphone

// ---- the call ----

/** Starts a call; `afterwards` runs once it is ready. Must be called inside a click: play() is. */
async function connect(afterwards = () => {}, { again = false } = {}) {
  unwanted = false;
  if (call || asking) return render();
  wake();
  sound.srcObject = new MediaStream();
  sound.play().catch(() => {}); // in the click: behind the question for a microphone Safari may refuse it
  if (!again) forgive();
  const stream = element("microphone").checked ? await openMicrophone() : null;
  if (unwanted) return forgo(stream);
  try {
    call = new Call(token, stream);
  } catch (error) {
    release(stream);
    return complain("browser", { detail: error.message });
  }
  const mine = call;
  mine.addEventListener("message", ({ detail }) => call === mine && receive(detail));
  mine.addEventListener("stats", ({ detail }) => call === mine && measure(detail));
  mine.addEventListener("end", ({ detail }) => call === mine && ended(detail, again));
  agentMeter.listen(mine.track);
  if (stream) yourMeter.listen(stream.getAudioTracks()[0]);
  sound.srcObject = new MediaStream([mine.track]);
  play();
  phase = "connecting";
  render();
  try {
    await mine.connect();
  } catch (error) {
    if (error.needsToken) askForToken(afterwards);
    return; // "end" has said the rest
  }
  begin(again);
  afterwards();
}

/** The call is ready. */
function begin(again) {
  forget();
  phase = "ready";
  hint = again ? "back" : hint;
  timeline.begin();
  call.send("watch", { on: !document.hidden });
  listDevices();
  render();
}

/** There is to be no call after all. */
function forgo(stream) {
  release(stream);
  microphone.close();
  unwanted = false;
  hint = null;
  render();
}

/** The user's voice; null, with a word of why, where there is none: the call is then for listening only. */
async function openMicrophone() {
  asking = true;
  render();
  try {
    const stream = await microphone.open(element("input").value);
    hint = null;
    return stream;
  } catch ({ code }) {
    hint = code;
    return null;
  } finally {
    asking = false;
  }
}

function ended(reason, again) {
  call = null;
  phase = "idle";
  turn = null;
  calm();
  microphone.close();
  sound.srcObject = null;
  agentMeter.rest();
  yourMeter.rest();
  timeline.end();
  demo.take(null);
  element("refused").hidden = true;
  for (const utterance of transcript.pending)
    Object.assign(utterance, { state: "over", detail: () => tell("said.call_ended"), known: true });
  if (reason?.comesBack || (again && ["unanswered", "unreachable"].includes(reason?.code))) returnLater();
  else stay();
  if (reason && (token || !reason.needsToken)) explain(reason);
  render();
}

function play() {
  element("refused").hidden = true;
  wake();
  sound.play().catch(({ name }) => {
    element("refused").hidden = name !== "NotAllowedError" || !call; // AbortError: hung up before it could start
  });
}

// ---- a server that was gone ----

/** Asks until it answers, and calls again. */
function returnLater() {
  const tries = back ? back.tries + 1 : 0;
  back = { tries, timer: setTimeout(lookForServer, RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]) };
}

async function lookForServer() {
  const answer = await fetch("healthz", { cache: "no-store" }).catch(() => null);
  if (!back) return;
  if (!answer?.ok) return returnLater();
  connect(() => {}, { again: true });
}

/** No longer waits for the server. */
function stay() {
  clearTimeout(back?.timer);
  back = null;
}

// ---- what the server says ----

function receive(message) {
  const utterance = transcript.find(message.id ?? message.playing) ?? unasked(message);
  switch (message.type) {
    case "session.created":
      voice = message;
      if (!message.recordings) clones.clear();
      introduce(message);
      listChoices();
      settle(false);
      break;
    case "view":
      timeline.take(message);
      if (!message.playing) return;
      Object.assign(readings, { heard: message.heard_ms, buffered: message.buffered_ms });
      transcript.hear(utterance, message.heard_ms);
      break;
    case "speech.queued":
      Object.assign(utterance, { state: "waiting", wait: message.wait_ms });
      utterance.detail = () => tell("said.waits", { wait: about(message.wait_ms) });
      break;
    case "speech.started":
      calm();
      turn = null;
      Object.assign(utterance, { state: "speaking", detail: () => tell("said.speaking") });
      if (!utterance.waited) readings.ttfa = message.ttfa_ms;
      break;
    case "speech.underrun":
      readings.heard = message.heard_ms;
      utterance.underruns = message.underruns;
      timeline.stutter(message.missed_ms);
      break;
    case "speech.paused":
      turn = turn === "hearing" ? turn : "paused";
      utterance.detail = () => tell("said.paused");
      break;
    case "speech.continued":
      turn = turn === "paused" ? null : turn;
      calm();
      utterance.detail = () => tell("said.speaking");
      break;
    case "speech.silenced":
      silenced(message.flush_ms + message.wire_ms + (message.turn_ms ?? 0));
      break;
    case "speech.stopped":
      Object.assign(readings, { heard: message.heard_ms, buffered: 0 });
      utterance.underruns = message.underruns ?? 0;
      transcript.stop(utterance, message);
      if (message.reason !== "end") timeline.drop(message.id);
      if (turn === "paused") turn = null;
      break;
    case "speech.waterfall":
      waterfall.take(message);
      waterfall.surround(readings);
      break;
    case "turn.started":
      turn = "hearing";
      break;
    case "turn.ended":
      turn = "thinking";
      break;
    case "turn.text":
      transcript.add(`t${++asked}`, message.text, { who: "user", state: "over", detail: () => "" });
      break;
    case "reply.text":
      transcript.add(message.id, message.text, { waited: true });
      break;
    case "reply.ended":
      if (turn === "thinking") turn = null;
      break;
    case "demo.state":
      demo.take(message);
      break;
    case "error":
      if (turn === "thinking") turn = null;
      Object.assign(utterance, { state: "failed", detail: () => tell("said.not_said") });
      complainOf(message);
      if (message.field === "voice" && clones.delete(element("speaker").value)) listChoices(), settle(); // it is gone
  }
  render();
}

/** An application may speak of its own accord. */
function unasked({ type, id }) {
  if (type === "speech.queued" || type === "speech.started")
    return transcript.add(id, tell("said.unasked"), { unasked: true });
  return { id, text: "", underruns: 0 };
}

/** It fell silent, which took so long. */
function silenced(ms) {
  readings.stopped = ms;
  timeline.cut(ms);
  calm();
  interrupted = { ms, timer: setTimeout(() => (calm(), render()), INTERRUPTED_MS) };
}

function calm() {
  clearTimeout(interrupted?.timer);
  interrupted = null;
}

// ---- what the user wants ----

function speak() {
  speakText(element("text").value.trim());
}

function speakText(text) {
  const waited = transcript.pending.length > 0;
  const id = `u${++asked}`;
  try {
    call.send("speak", { id, text, seed: numeral("seed"), temperature: numeral("temperature") });
  } catch (error) {
    return complain("too_large", { detail: error.message });
  }
  forgive();
  calm();
  if (!waited)
    agentMeter.timeToSound((elapsed) => {
      readings.firstSound = elapsed;
      render();
    });
  transcript.add(id, text, { waited });
  render();
}

/** What differs from the voice's own way. */
const filled = (id) => (element(id).validity.valid && element(id).value.trim()) || undefined;
const numeral = (id) => (filled(id) === undefined ? undefined : Number(filled(id)));
const chosen = (id) => (element(id).selectedIndex > 0 ? element(id).value : undefined);

/** Who speaks from now on, in replies as well, in which language and how; until that is chosen, the server knows. */
function settle(chosenNow = true) {
  settled ||= Boolean(chosenNow);
  const name = element("speaker").value;
  const who = clones.has(name) || voice?.voices?.includes(name) ? { voice: name } : { speaker: chosen("speaker") };
  const instruction = element("instruction-field").hidden ? undefined : filled("instruction");
  if (settled || who.voice) call?.send("session.update", { ...who, language: chosen("spoken"), instruction });
}

/** Makes a recording a voice, which speaks from then on. */
async function clone(form) {
  const mine = call;
  cloning = true;
  render();
  try {
    const answer = await mine.fetch("voices", { method: "POST", body: form });
    const { id } = await answer.json();
    clones.set(id, form.get("audio").name);
    listChoices();
    element("speaker").value = id;
    settle();
    forgive();
  } catch (error) {
    if (call === mine) explain(error, "recording");
  }
  cloning = false;
  render();
}

/** What is typed as if it had been said: the agent answers. */
function say() {
  forgive();
  turn = "thinking";
  call.send("say", { text: element("text").value.trim() });
  render();
}

function stop() {
  call.send("stop"); // the server answers with a speech.stopped for each that is pending
}

async function download() {
  const answer = await call.fetch("demo/trace").catch(() => null);
  if (!answer) return complain("unanswered");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = "breezert-run.jsonl";
  link.click();
  URL.revokeObjectURL(link.href);
}

// ---- microphone and devices ----

/** Fills a list of choices, each [value, words]. What was chosen stays so, if it is there. */
function offer(id, choices) {
  const before = element(id).value;
  element(id).replaceChildren(...choices.map(([value, words]) => new Option(words, value, false, value === before)));
}

async function listDevices() {
  for (const [id, kind] of [["input", "audioinput"], ["output", "audiooutput"]]) {
    const named = (await devices(kind)).filter(({ deviceId }) => deviceId);
    const options = named.map(({ deviceId, label }, index) => [deviceId, label || String(index + 1)]);
    offer(id, [["", tell("talk.default_device")], ...options]);
  }
}

/** Who can speak, and which languages, where there is a choice. The first is the voice's own. */
function listChoices() {
  const { speakers = [""], voices = [], languages = [], modes = ["plain"] } = voice ?? {};
  const own = modes.includes("plain") ? speakers : [];
  for (const [id, first, others] of [["speaker", own, [...voices, ...clones.keys()]], ["spoken", languages, []]]) {
    offer(id, [...first, ...others].map((name) => [name, clones.get(name) ?? (name || tell("talk.own"))]));
    element(`${id}-field`).hidden = first.length < 2 && !others.length;
  }
}

async function changeInput() {
  if (!call || !microphone.isOpen) return;
  const mine = call;
  const stream = await openMicrophone();
  if (call !== mine) {
    release(stream);
    microphone.close();
  } else if (stream) {
    yourMeter.listen(stream.getAudioTracks()[0]);
    await call.replaceMicrophone(stream);
  }
  render();
}

function mute(on) {
  microphone.set({ muted: on });
  render();
}

function hold(on) {
  if (!microphone.pushes || microphone.held === on) return;
  microphone.set({ held: on });
  render();
}

/** The space bar talks wherever it writes and chooses nothing; buttons can still be pressed with Enter. */
const talksBySpace = ({ code, target }) =>
  code === "Space" && microphone.pushes && microphone.isOpen && !target.closest("input, textarea, select, summary");

// ---- what is shown ----

const speaking = () => transcript.pending.some(({ state }) => state === "speaking");

function render() {
  const [state, words] = status();
  write("status", words);
  Object.assign(element("status").dataset, { phase: speaking() ? "speaking" : phase, state });
  document.body.dataset.state = state;
  const step = waits() ? "connecting" : phase;
  write("connect-words", tell({ idle: "talk.connect", connecting: "talk.cancel", ready: "talk.hang_up" }[step]));
  element("connect").dataset.phase = step;
  write("speak", tell(phase === "idle" ? "talk.connect_and_speak" : "talk.speak"));
  element("speak").disabled = step === "connecting";
  element("say").disabled = phase !== "ready";
  element("clone-it").disabled = phase !== "ready" || cloning;
  element("stop").disabled = !transcript.pending.length;
  renderMicrophone();
  renderFigures();
  renderNotes();
  if (voice) introduce(voice);
  else write("voice", tell("talk.voice_later"));
  element("nothing-said").hidden = transcript.utterances.length > 0;
  element("utterances").hidden = !transcript.utterances.length;
  transcript.render();
  element("no-waterfall").hidden = element("waterfall").childElementCount > 0;
  element("example").hidden = phase === "ready" || readings.called;
  element("freeze").disabled = phase !== "ready";
  element("freeze").setAttribute("aria-pressed", String(timeline.held));
  demo.hear(speaking());
  count();
}

/** For the answer about the microphone. */
const waits = () => phase === "idle" && asking && !unwanted;

/** The state of the call, and its words. */
function status() {
  if (back && phase !== "ready") return ["lost", tell("status.lost")];
  if (waits()) return ["connecting", tell("status.asking")];
  if (phase !== "ready") return [phase, tell(`status.${phase}`)];
  if (turn === "paused") return ["paused", tell("status.paused")]; // whether it is one is not known yet
  if (interrupted) return ["interrupted", tell("status.interrupted", { ms: number(interrupted.ms) })];
  if (turn === "hearing") return ["hearing", tell("status.hearing")];
  const waiting = transcript.pending;
  if (waiting.length) return [speaking() ? "speaking" : "thinking", waitingWords(waiting)];
  if (turn === "thinking") return ["thinking", tell("status.thinking")];
  if (!microphone.isOpen) return ["ready", tell("status.ready")];
  if (microphone.muted) return ["ready", tell("status.muted")];
  return microphone.live ? ["listening", tell("status.listening")] : ["ready", tell("status.push")];
}

function waitingWords(waiting) {
  const { wait } = waiting.at(-1); // of the one that is next, where it has to wait for other callers
  const next = wait === undefined ? tell("status.making") : tell("status.busy", { wait: about(wait) });
  const words = speaking() ? tell("status.speaking") : next;
  return waiting.length > 1 ? tell("status.more", { words, count: waiting.length - 1 }) : words;
}

function renderMicrophone() {
  const { isOpen, muted, pushes, held } = microphone;
  element("microphone").disabled = phase !== "idle";
  element("mute").hidden = !isOpen;
  element("mute").setAttribute("aria-pressed", String(muted));
  element("hold").hidden = !(isOpen && pushes);
  element("hold").toggleAttribute("data-held", held);
  element("level-you").toggleAttribute("data-off", phase === "ready" && !microphone.live);
}

function renderFigures() {
  const inCall = phase === "ready" || transcript.utterances.length > 0;
  write("ttfa", milliseconds(readings.ttfa));
  write("first-sound", milliseconds(readings.firstSound));
  write("buffered", phase === "ready" ? milliseconds(readings.buffered ?? 0) : "–");
  write("heard", readings.heard === undefined ? "–" : spell(readings.heard));
  write("underruns", inCall ? number(transcript.underruns) : "–");
  element("underruns").toggleAttribute("data-some", transcript.underruns > 0);
  write("stopped", milliseconds(readings.stopped));
}

function renderNotes() {
  element("problem").hidden = !problem;
  element("give-up").hidden = !back;
  if (problem) {
    write("problem-what", problem.what());
    write("problem-advice", problem.advice());
  }
  element("hint").hidden = !hint;
  if (hint) write("hint-words", tell(`hint.${hint}`, { anyway: tell("hint.anyway") }));
}

function introduce({ voice: name, licence, modes, recordings }) {
  write("voice", `${name} · ${tell("talk.licence", { licence })}`);
  element("restricted").hidden = !/non-?\s?commercial|\bnc\b|research/i.test(licence);
  element("instruction-field").hidden = !modes.includes("design");
  element("clone").hidden = !recordings;
}

const write = (id, words) => put(element(id), words);

/** What this browser measured in the last second, from totals. */
function measure(stats) {
  const grown = (name) => (stats[name] ?? 0) - (last?.[name] ?? 0);
  const emitted = grown("jitter_buffer_emitted_count");
  const made = grown("concealed_samples") - grown("silent_concealed_samples");
  readings.delay = emitted > 0 ? (1000 * grown("jitter_buffer_delay")) / emitted : undefined;
  readings.trip = stats.round_trip_time === undefined ? undefined : 1000 * stats.round_trip_time;
  lines.delay.add(readings.delay);
  lines.concealed.add(last ? Math.max(0, made / 48) : undefined);
  lines.trip.add(readings.trip);
  lines.lost.add(last ? Math.max(0, grown("packets_lost")) : undefined);
  waterfall.surround(readings);
  last = stats;
}

/** For those who do not see the picture. */
function summarise() {
  const { buffered, slack, calls } = timeline.history;
  const [ready, spare] = [milliseconds(buffered), slack === null ? "–" : milliseconds(slack)];
  const values = { ready, spare, stutters: number(transcript.underruns), peers: number(calls) };
  write("summary", phase === "ready" ? tell("see.summary", values) : "");
}

function count() {
  const most = voice?.max_text_chars;
  if (most) element("text").maxLength = most;
  write("count", most ? tell("talk.count", { count: element("text").value.length, most }) : "");
}

function forget() {
  transcript.clear();
  waterfall.clear();
  for (const line of Object.values(lines)) line.clear();
  readings = { called: true };
  turn = last = null;
  stay();
  forgive();
}

// ---- problems ----

/** Either the code of a problem's texts, or what gives its words. */
function complain(code, values = {}) {
  const words = { what: () => tell(`problem.${code}`, values), advice: () => tell(`problem.${code}.advice`, values) };
  problem = typeof code === "string" ? words : code;
  render();
}

function forgive() {
  problem = null;
}

/** A call that failed or ended; the server's own words say more than ours, in its language. `of`: what was refused. */
function explain({ code, values, said, again, comesBack }, of = code) {
  const named = code === "refused" ? of : code;
  const what = () => (said && language() === "en" && code === "busy" ? sentence(said) : tell(`problem.${named}`, values));
  const advice = () => {
    if (again != null) return tell("problem.again", { seconds: again });
    if (comesBack) return tell("problem.back");
    if (code === "refused" || code === "strange") return said ? sentence(said) : tell("problem.reload");
    return tell(`problem.${code}.advice`, values);
  };
  complain({ what, advice });
}

/** An error of the server: in English its own words, elsewhere ours and then its own. */
function complainOf({ code, message, retry_after_ms: wait }) {
  const what = () => {
    const ours = tell(known(`code.${code}`) ? `code.${code}` : "code.other");
    return ours ? `${ours} (${message})` : sentence(message);
  };
  const advice = () => {
    if (code === "engine_died") return tell("problem.engine_died");
    return wait === undefined ? "" : tell("problem.again_about", { wait: about(wait) });
  };
  complain({ what, advice });
}

/** The server's messages are written for logs, too. */
const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1) + (/[.!?…]$/.test(words) ? "" : ".");
const about = (wait) => tell("status.about", { seconds: number(Math.max(1, Math.ceil(wait / 1000))) });
const milliseconds = (value) => (value === undefined ? "–" : `${number(value)} ms`);

// ---- the token ----

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

// ---- the buttons ----

function press() {
  const waited = back;
  stay();
  if (call) call.hangUp();
  else if (waits()) ((unwanted = true), render());
  else connect(() => {}, { again: waited !== null });
}

function speakNow() {
  stay();
  if (call) speak();
  else connect(speak);
}

function show(code) {
  choose(code);
  fill();
  listDevices();
  listChoices();
  timeline.repaint();
  waterfall.render();
  for (const line of Object.values(lines)) line.render();
  demo.render();
  render();
}

element("connect").onclick = press;
element("stop").onclick = stop;
element("say").onclick = say;
element("play").onclick = play;
element("give-up").onclick = () => (stay(), forgive(), render());
element("problem-close").onclick = () => (forgive(), render());
element("hint-close").onclick = () => ((hint = null), render());
element("text").oninput = count;
element("microphone").onchange = () => (touched = true);
for (const id of ["speaker", "spoken", "instruction"]) element(id).onchange = settle;
element("clone").onsubmit = (event) => {
  event.preventDefault();
  clone(new FormData(event.target));
};
element("input").onchange = changeInput;
element("output").onchange = ({ target }) => sound.setSinkId(target.value).catch(listDevices); // it has gone
element("mute").onclick = () => mute(!microphone.muted);
element("push").onchange = ({ target }) => (microphone.set({ pushes: target.checked, held: false }), render());
element("hold").onpointerdown = ({ target, pointerId }) => (target.setPointerCapture(pointerId), hold(true));
element("hold").onpointerup = element("hold").onpointercancel = () => hold(false);
element("freeze").onclick = () => ((timeline.held = !timeline.held), render());
element("language").onchange = ({ target }) => show(target.value);
element("speak-form").onsubmit = (event) => {
  event.preventDefault();
  speakNow();
};
element("text").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !element("speak").disabled)
    element("speak-form").requestSubmit();
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && !element("stop").disabled) stop();
  if (!talksBySpace(event)) return;
  event.preventDefault();
  hold(true);
};
document.onkeyup = (event) => {
  if (talksBySpace(event)) event.preventDefault(); // a button in focus would be pressed now
  if (event.code === "Space") hold(false);
};
addEventListener("blur", () => hold(false)); // nobody tells a page that the key was released elsewhere
document.onvisibilitychange = () => phase === "ready" && call.send("watch", { on: !document.hidden });
addEventListener("hashchange", takeToken);
addEventListener("pagehide", () => call?.hangUp());
navigator.mediaDevices?.addEventListener("devicechange", listDevices);

takeToken();
element("output-field").hidden = !("setSinkId" in sound);
offer("language", Object.entries(LANGUAGES));
element("language").value = language();
element("text").value = EXAMPLE;
fill();
listDevices();
render();
timeline.pose(...example());
setInterval(summarise, SUMMARY_MS);
devices("audioinput").then((found) => {
  if (!touched) element("microphone").checked = found.length > 0; // as far as a page may know before it asks
});
