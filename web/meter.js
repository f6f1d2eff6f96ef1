// Listens to tracks: shows how loud they are, and tells when sound begins and ends. Knows nothing of calls.
//
// An AnalyserNode and not an AudioWorklet: worklets exist in secure contexts only, and a page on a plain http address
// in the local network is to have its meter too.

const AUDIBLE = 0.003; // -50 dB of full scale: below it lies only what the Opus decoder makes of silence
const QUIETEST_DB = -54;
const POLL_MS = 40;
const WINDOW = 4096; // samples: 85 ms at 48 kHz, so that polls overlap
const TAIL_MS = 300; // how long a listener's jitter buffer may still ring after the last sound was sent
const PAUSE_MS = 40; // who presses Stop after so much quiet has hit a pause of the speech

let context = null; // one for all meters

/** To be called inside the click: the browser may refuse the audio context as it may refuse play(). */
export function wake() {
  context ??= new AudioContext();
  context.resume().catch(() => {}); // refused: play() is refused as well, and the page offers its button
}

export class Meter {
  #elements;
  #analyser;
  #source;
  #timer;
  #samples = new Float32Array(WINDOW);
  #polledAt = 0;
  #heardAt = -Infinity;
  #waiting = null;
  #ending = null;
  #shown = 0;

  /** The elements get its level, 0 to 1, as the style property --level. */
  constructor(...elements) {
    this.#elements = elements;
  }

  listen(track) {
    this.rest();
    this.#analyser ??= new AnalyserNode(context, { fftSize: WINDOW });
    this.#source = context.createMediaStreamSource(new MediaStream([track]));
    this.#source.connect(this.#analyser);
    this.#timer = setInterval(() => this.#poll(), POLL_MS);
  }

  rest() {
    clearInterval(this.#timer);
    this.#source?.disconnect();
    this.#source = this.#waiting = null;
    this.#ending?.then(null);
    this.#ending = null;
    this.#show(0);
  }

  /** Calls `then(milliseconds)` at the next audible sample. Does nothing while an earlier sound may still ring. */
  timeToSound(then) {
    const since = performance.now();
    this.#waiting = since - this.#heardAt > TAIL_MS ? { since, then } : null;
  }

  /** Calls `then(milliseconds)` once it is quiet, with the time to the last audible sample; null in a pause. */
  timeToSilence(then) {
    const since = performance.now();
    if (since - this.#heardAt > PAUSE_MS + POLL_MS) then(null);
    else this.#ending = { since, then };
  }

  #poll() {
    const now = performance.now();
    const rate = context.sampleRate;
    const fresh = Math.min(WINDOW, Math.ceil(((now - this.#polledAt) / 1000) * rate));
    this.#polledAt = now;
    this.#analyser.getFloatTimeDomainData(this.#samples);
    const heard = this.#samples.subarray(WINDOW - fresh);
    const instant = (index) => now - ((fresh - index) / rate) * 1000;
    const isAudible = (sample) => Math.abs(sample) > AUDIBLE;
    const first = heard.findIndex(isAudible);
    if (first >= 0) this.#hear(instant(first), instant(heard.findLastIndex(isAudible)));
    if (this.#ending && now - Math.max(this.#heardAt, this.#ending.since) > TAIL_MS) this.#end();
    this.#show(share(Math.sqrt(heard.reduce((sum, sample) => sum + sample * sample, 0) / fresh)));
  }

  #hear(firstAt, lastAt) {
    this.#heardAt = lastAt;
    this.#waiting?.then(firstAt - this.#waiting.since);
    this.#waiting = null;
  }

  #end() {
    const { since, then } = this.#ending;
    this.#ending = null;
    then(this.#heardAt > since ? this.#heardAt - since : null);
  }

  /** Falls more slowly than it rises, as level meters do. */
  #show(level) {
    const shown = Math.max(level, this.#source ? this.#shown - 0.12 : 0);
    if (Math.abs(shown - this.#shown) < 0.005) return;
    this.#shown = shown;
    for (const element of this.#elements) element.style.setProperty("--level", shown.toFixed(3));
  }
}

/** Where a loudness lies between the quietest shown (0) and full scale (1), on a scale in dB. */
function share(loudness) {
  return loudness > 0 ? Math.max(0, 1 - (20 * Math.log10(loudness)) / QUIETEST_DB) : 0;
}
