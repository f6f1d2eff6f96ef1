// The timeline: keeps a History, paints it into tiles and lets these glide past the now line. Knows nothing of calls.
//
// What has happened does not change, so a picture of it is painted once, as views come, and only where it is new;
// between that the tiles are an animation of the browser's compositor, and this thread has nothing to do with a frame.
// Right of the now line lies a veil; only speech is painted again when it turns from ready to played, whose numbers could
// not be read under one.

import { History, STAGES } from "./history.js";
import { HEIGHT, HEIGHT_ALONE, LANES, Painter } from "./painter.js";
import { number, put, tell } from "./texts.js";

const PAST_MS = 20_000;
const FUTURE_MS = 4_500;
const TILE_MS = 5_000;
const BEHIND_MS = 250; // so late it is shown, so that views have arrived by then
const OFFSETS = 50; // views by whose fastest the server's clock is read
const STILL_MS = 1_000; // how often the picture moves for those who asked for little motion
const STEP_MS = 200; // how often it is looked whether the tiles are where they should be
const ADRIFT_MS = 10; // so far they may be from there: less than a pixel
const COLOURS = [
  "made", "played", "ready", "on-played", "on-ready", "arrow", "lost", "stutter", "area", "ahead", "cut", "grid", "floor",
  "peer", "synthetic", "field", ...STAGES,
];

export class Timeline {
  #element;
  #strip;
  #pins; // deadline and slack: they glide with the tiles, and stand above the veil
  #tiles = new Map(); // index -> {canvas, paint}
  #painter = null;
  #tileWidth = 0;
  #offsets = [];
  #timer = 0;
  #glides = []; // the animations of strip and pins, while they move
  #startedAt = 0; // of these, on the browser's clock
  #held = false;
  #seam = 0; // where speech turned from ready to played when it was last painted
  #seen = true;
  #shownAt = null; // the instant at the now line
  #anchored = null; // the tile from which the others' places are counted
  #fresh = false; // a tile has no place yet
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  #live = false;
  #ahead = 4_000;
  history = new History();

  /** `element` contains .strip, .pins, and elements that say by data-lane which lane they stand beside. */
  constructor(element) {
    this.#element = element;
    this.#strip = element.querySelector(".strip");
    this.#pins = element.querySelector(".pins");
    element.style.setProperty("--height", `${HEIGHT}px`);
    element.style.setProperty("--height-alone", `${HEIGHT_ALONE}px`);
    element.style.setProperty("--now", String(PAST_MS / (PAST_MS + FUTURE_MS)));
    element.querySelector(".stages").innerHTML = STAGES.map(label).join("");
    for (const each of element.querySelectorAll("[data-lane]")) each.style.top = `${LANES[each.dataset.lane].top}px`;
    new ResizeObserver(() => this.#fit()).observe(element);
    new IntersectionObserver(([entry]) => this.#see(entry.isIntersecting)).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    this.#still.addEventListener("change", () => this.#run());
  }

  /** Begins anew, with a moving picture. */
  begin() {
    this.#forget();
    this.#live = true;
    this.#run();
  }

  /** The picture stands, and stays to be looked at; nothing is ready any more. */
  end() {
    if (!this.#live) return;
    this.#live = false;
    this.#run();
    this.history.end();
    this.#write();
  }

  /** A picture of a history that stands still at an instant. */
  pose(history, at) {
    this.#forget();
    this.#live = false;
    this.history = history;
    this.#shownAt = this.#seam = at;
    this.repaint();
  }

  /** Whether the picture is held while the call goes on. */
  get held() {
    return this.#held;
  }

  set held(on) {
    this.#held = on;
    if (!on) this.repaint();
    this.#run();
  }

  take(view) {
    this.#offsets = [...this.#offsets, performance.now() - view.at].slice(-OFFSETS);
    this.#touch(this.history.take(view));
    if (this.history.buffered > this.#ahead) this.#rise(this.history.buffered);
    this.#write();
  }

  /** The utterance is over now, before its end. */
  drop(id) {
    if (this.#offsets.length) this.#touch(this.history.drop(id, this.#now));
  }

  stutter(ms) {
    if (this.#offsets.length) this.#touch(this.history.stutter(this.#now, ms));
  }

  cut(ms) {
    if (this.#offsets.length) this.#touch(this.history.cut(this.#now, ms));
  }

  /** Paints all of it, as after a change of size, colours or language. */
  repaint() {
    this.#tiles.forEach(({ canvas }) => canvas.remove());
    this.#tiles.clear();
    this.#painter = null;
    if (this.#element.clientWidth && this.#shownAt !== null) this.#show(this.#glides.length ? this.#at : this.#shownAt);
    this.#write();
  }

  // ---- time ----

  /** On the server's clock, less the fastest message's way. */
  get #now() {
    return performance.now() - Math.min(...this.#offsets);
  }

  /** The instant that belongs at the now line. */
  get #at() {
    return this.#now - BEHIND_MS;
  }

  #see(seen) {
    this.#seen = seen;
    this.#run();
  }

  #run() {
    clearInterval(this.#timer);
    this.#rest();
    if (!this.#live || !this.#seen || this.#held) return;
    this.#timer = setInterval(() => this.#step(), this.#still.matches ? STILL_MS : STEP_MS);
    this.#step();
  }

  #step() {
    if (!this.#offsets.length) return;
    this.#show(this.#at);
    if (!this.#still.matches) this.#glide();
  }

  /** From here on the tiles move by themselves, until long after the next step. */
  #glide() {
    const startedAt = performance.now() - (this.#shownAt - PAST_MS - this.#anchored * TILE_MS);
    if (this.#glides.length && Math.abs(startedAt - this.#startedAt) < ADRIFT_MS) return;
    const way = 2 * this.#tileWidth;
    // By whole pixels of the screen: sharp, and a frame in which nothing has moved by one costs nothing.
    const timing = { duration: 2 * TILE_MS, easing: `steps(${Math.max(1, Math.round(way * devicePixelRatio))})` };
    const before = this.#glides;
    this.#startedAt = startedAt;
    this.#glides = [this.#strip, this.#pins].map((each) =>
      each.animate([{ transform: "translateX(0)" }, { transform: `translateX(${-way}px)` }], timing),
    );
    for (const each of this.#glides) each.startTime = startedAt;
    for (const each of before) each.cancel();
  }

  /** They stand where they are. */
  #rest() {
    const glides = this.#glides.splice(0);
    for (const each of glides) each.cancel();
    if (glides.length && this.#offsets.length) this.#show(this.#at);
  }

  #forget() {
    this.history = new History();
    this.#offsets = [];
    this.#rest();
    this.#shownAt = null;
    this.#ahead = 4_000;
    this.#held = false;
    this.repaint();
  }

  // ---- tiles ----

  #fit() {
    const width = Math.round((this.#element.clientWidth * TILE_MS) / (PAST_MS + FUTURE_MS));
    if (width === this.#tileWidth) return;
    this.#tileWidth = width;
    this.repaint();
    this.#run();
  }

  get #scale() {
    return this.#tileWidth / TILE_MS;
  }

  get #paints() {
    return (this.#painter ??= new Painter(
      this.#scale,
      colours(this.#element),
      (ms) => tell("see.cut", { ms: number(ms) }),
      this.#ahead,
    ));
  }

  /** The instant at the now line. */
  #show(at) {
    this.#shownAt = at;
    const left = at - PAST_MS;
    const first = Math.floor(left / TILE_MS);
    const last = Math.floor((at + FUTURE_MS + STEP_MS) / TILE_MS);
    for (const [index, { canvas }] of this.#tiles)
      if (index < first || index > last) canvas.remove(), this.#tiles.delete(index);
    for (let index = first; index <= last; index++) if (!this.#tiles.has(index)) this.#make(index);
    // Relative to a tile and not to the clock's zero, whose distance a float of the compositor could not hold.
    this.#anchor(first);
    if (this.#glides.length) return;
    const moved = Math.round((first * TILE_MS - left) * this.#scale * devicePixelRatio) / devicePixelRatio;
    this.#strip.style.transform = this.#pins.style.transform = `translateX(${moved}px)`;
  }

  #anchor(first) {
    if (this.#anchored === first && !this.#fresh) return;
    for (const [index, { canvas }] of this.#tiles) canvas.style.left = `${(index - first) * this.#tileWidth}px`;
    this.#anchored = first;
    this.#fresh = false;
    this.#pin();
  }

  /** The deadline where what is ready ends, and in front of it the time that the next chunk has to spare. */
  #pin() {
    const { deadline, slack, buffered, at } = this.history;
    const [line, spare] = this.#pins.children;
    line.hidden = !(buffered > 0) || this.#anchored === null;
    spare.hidden = line.hidden || slack === null;
    if (line.hidden) return;
    const x = (instant) => (instant - this.#anchored * TILE_MS) * this.#scale;
    line.style.left = `${x(deadline).toFixed(1)}px`;
    if (spare.hidden) return;
    const due = Math.max(at, deadline - Math.max(0, slack));
    spare.style.left = `${x(due).toFixed(1)}px`;
    spare.style.width = `${(x(deadline) - x(due)).toFixed(1)}px`;
    spare.toggleAttribute("data-late", slack < 0);
  }

  #make(index) {
    const canvas = document.createElement("canvas");
    const ratio = devicePixelRatio;
    canvas.width = Math.round(this.#tileWidth * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
    canvas.style.width = `${this.#tileWidth}px`;
    canvas.style.height = `${HEIGHT}px`;
    const paint = canvas.getContext("2d", { alpha: false }); // what lies below need not be composed
    paint.scale(canvas.width / this.#tileWidth, canvas.height / HEIGHT);
    this.#tiles.set(index, { canvas, paint });
    this.#strip.append(canvas);
    this.#fresh = true;
    this.#paint(index, -Infinity, Infinity);
  }

  #touch([from, to]) {
    if (this.#held) return;
    const begin = Math.min(from, this.#seam);
    this.#seam = this.#glides.length ? this.#at + STEP_MS / 2 : this.#shownAt; // half-way to where it is by the next view
    for (const index of this.#tiles.keys()) this.#paint(index, begin - 50, to + 200);
  }

  #paint(index, from, to) {
    const origin = index * TILE_MS;
    const [left, right] = [Math.max(from, origin), Math.min(to, origin + TILE_MS)];
    if (left < right && this.#tileWidth) this.#paints.paint(this.#tiles.get(index).paint, origin, this.history, left, right, this.#seam);
  }

  /** More is ready than the lane has room for. */
  #rise(ms) {
    this.#ahead = 1.25 * ms;
    this.repaint();
  }

  // ---- what stands beside the tiles ----

  #write() {
    if (this.#held) return;
    const { buffered, slack, calls } = this.history;
    const spare = slack === null ? "" : tell(slack < 0 ? "see.late" : "see.spare", { ms: number(Math.abs(slack)) });
    this.#put("ready", buffered > 0 ? tell("see.ready_ahead", { ms: number(buffered) }) + spare : "");
    this.#pin();
    for (const stage of STAGES) this.#put(stage, this.history.rows(stage) ? `×${this.history.rows(stage)}` : "");
    this.#put("calls", calls ? number(calls) : "");
    this.#element.toggleAttribute("data-peers", calls > 0);
  }

  #put(name, words) {
    put(this.#element.querySelector(`[data-reading="${name}"]`), words);
  }
}

const label = (stage) =>
  `<li data-part="${stage}"><span data-text="waterfall.${stage}"></span> <b data-reading="${stage}"></b></li>`;

function colours(element) {
  const style = getComputedStyle(element);
  return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
