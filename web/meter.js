// Listens to a received track and draws how loud it is. Knows nothing of calls or of the protocol.
//
// An AnalyserNode and not an AudioWorklet: worklets exist in secure contexts only, and a page on a plain http address
// in the local network is to have its meter too.

const AUDIBLE = 0.003; // -50 dB of full scale: below it lies only what the Opus decoder makes of silence
const QUIETEST_DB = -54;
const POLL_MS = 40; // measured: half of the page's CPU time went into drawing at 20
const WINDOW = 4096; // samples: 85 ms at 48 kHz, so that polls overlap
const TAIL_MS = 300; // how long a listener's jitter buffer may still ring after the last sound was sent
const BAR_PX = 4;
const GAP_PX = 3;

export class Meter {
  #canvas;
  #context;
  #analyser;
  #source;
  #timer;
  #samples = new Float32Array(WINDOW);
  #polledAt = 0;
  #heardAt = -Infinity;
  #waiting = null;
  #levels = [];

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#fit()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** To be called inside the click: the browser may refuse the audio context as it may refuse play(). */
  wake() {
    this.#context ??= new AudioContext();
    this.#context.resume().catch(() => {}); // refused: play() is refused as well, and the page offers its button
  }

  listen(track) {
    this.#analyser ??= new AnalyserNode(this.#context, { fftSize: WINDOW });
    this.#source = this.#context.createMediaStreamSource(new MediaStream([track]));
    this.#source.connect(this.#analyser);
    this.#timer = setInterval(() => this.#poll(), POLL_MS);
  }

  rest() {
    clearInterval(this.#timer);
    this.#source?.disconnect();
    this.#source = this.#waiting = null;
    this.#levels = [];
    this.#draw();
  }

  /** Calls `then(milliseconds)` at the next audible sample. Does nothing while an earlier sound may still ring. */
  timeToSound(then) {
    const since = performance.now();
    this.#waiting = since - this.#heardAt > TAIL_MS ? { since, then } : null;
  }

  #poll() {
    const now = performance.now();
    const rate = this.#context.sampleRate;
    const fresh = Math.min(WINDOW, Math.ceil(((now - this.#polledAt) / 1000) * rate));
    this.#polledAt = now;
    this.#analyser.getFloatTimeDomainData(this.#samples);
    const heard = this.#samples.subarray(WINDOW - fresh);
    const first = heard.findIndex((sample) => Math.abs(sample) > AUDIBLE);
    if (first >= 0) this.#hear(now - ((fresh - first) / rate) * 1000, now);
    this.#show(share(Math.sqrt(heard.reduce((sum, sample) => sum + sample * sample, 0) / fresh)));
  }

  #show(level) {
    const wasStill = !this.#levels.some(Boolean);
    this.#levels = [...this.#levels, level].slice(-this.#bars);
    if (level || !wasStill) this.#draw();
  }

  get #bars() {
    return Math.max(1, Math.floor((this.#canvas.clientWidth + GAP_PX) / (BAR_PX + GAP_PX)));
  }

  #hear(firstAt, now) {
    this.#heardAt = now;
    this.#waiting?.then(firstAt - this.#waiting.since);
    this.#waiting = null;
  }

  #fit() {
    this.#canvas.width = this.#canvas.clientWidth * devicePixelRatio;
    this.#canvas.height = this.#canvas.clientHeight * devicePixelRatio;
    this.#canvas.getContext("2d").scale(devicePixelRatio, devicePixelRatio);
    this.#draw();
  }

  /** One bar a poll, the newest at the right; a still dot where there is no sound. */
  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const step = BAR_PX + GAP_PX;
    const bars = this.#bars;
    const paint = this.#canvas.getContext("2d");
    paint.clearRect(0, 0, width, height);
    paint.fillStyle = getComputedStyle(this.#canvas).color;
    const right = width - BAR_PX - (width + GAP_PX - bars * step) / 2;
    for (let back = 0; back < bars; back++) {
      const level = this.#levels.at(-1 - back) ?? 0;
      const tall = Math.max(BAR_PX, level * height);
      paint.globalAlpha = level ? 1 - (0.75 * back) / bars : 0.22;
      paint.beginPath();
      paint.roundRect(right - back * step, (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
      paint.fill();
    }
  }
}

/** Where a loudness lies between the quietest shown (0) and full scale (1), on a scale in dB. */
function share(loudness) {
  return loudness > 0 ? Math.max(0, 1 - (20 * Math.log10(loudness)) / QUIETEST_DB) : 0;
}
